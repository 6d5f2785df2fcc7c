"""Where the policy's tokenizer and processor are, and how veRL makes a conversation's tokens with them.

Importing it imports neither torch nor veRL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

if TYPE_CHECKING:
    from arpo_verl.rollout.chat import ChatTokenizer


@dataclass(frozen=True)
class PolicyFiles:
    """Of the recipe's `actor_rollout_ref.model`, what veRL's `HFModelConfig` makes tokenizer and processor of."""

    path: str
    tokenizer_path: str | None = None
    """Folder or name of tokenizer and processor; None: `path`."""
    custom_chat_template: str | None = None
    """In the place of the template that they bring."""
    trust_remote_code: bool = False

    @classmethod
    def of_recipe(cls, config: DictConfig) -> PolicyFiles:
        """Of a composed recipe."""
        model = config.actor_rollout_ref.model
        return cls(
            path=model.path,
            tokenizer_path=model.get("tokenizer_path"),
            custom_chat_template=model.get("custom_chat_template"),
            trust_remote_code=bool(model.get("trust_remote_code", False)),
        )

    @property
    def processor(self) -> str:
        """Where tokenizer and processor lie."""
        return self.tokenizer_path or self.path


def load_processor(folder: Path | str) -> Any:
    """The processor in a model's folder, as veRL's `HFModelConfig` loads it for the rollout workers."""
    from verl.utils.tokenizer import hf_processor

    return hf_processor(str(folder))


def chat_tokenizer(
    tokenizer: Any, processor: Any, model_type: str, mm_processor_kwargs: Mapping[str, Any] | None = None
) -> ChatTokenizer:
    """What the agent loop tokenizes a conversation with.

    Args:
        model_type: `model_type` of the model's config: it decides how veRL joins turns.
        mm_processor_kwargs: the recipe's `data.mm_processor_kwargs`.
    """
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    from arpo_verl.rollout.chat import ChatTokenizer

    kwargs = dict(mm_processor_kwargs or {})
    builder = create_continuous_token_builder(
        tokenizer, processor=processor, hf_model_type=model_type, mm_processor_kwargs=kwargs
    )
    return ChatTokenizer.from_processor(tokenizer, processor, builder, kwargs)
