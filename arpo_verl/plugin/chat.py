"""A conversation's tokens as veRL makes them: its own loading of the processor and its own token builder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl.utils.tokenizer import hf_processor
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from arpo_verl.rollout.chat import ChatTokenizer


def load_processor(folder: Path | str) -> Any:
    """The processor in a model's folder, as veRL's `HFModelConfig` loads it for the rollout workers."""
    return hf_processor(str(folder))


def chat_tokenizer(
    tokenizer: Any, processor: Any, model_type: str, mm_processor_kwargs: Mapping[str, Any] | None = None
) -> ChatTokenizer:
    """What the agent loop tokenizes a conversation with.

    Args:
        model_type: `model_type` of the model's config: it decides how veRL joins turns.
        mm_processor_kwargs: the recipe's `data.mm_processor_kwargs`.
    """
    kwargs = dict(mm_processor_kwargs or {})
    builder = create_continuous_token_builder(
        tokenizer, processor=processor, hf_model_type=model_type, mm_processor_kwargs=kwargs
    )
    return ChatTokenizer.from_processor(tokenizer, processor, builder, kwargs)
