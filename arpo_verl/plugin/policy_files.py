"""Where the policy's tokenizer and processor are, and what the recipe changes in them. Without torch and veRL."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig


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
