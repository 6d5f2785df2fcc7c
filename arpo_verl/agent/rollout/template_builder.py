"""Tokenize a conversation with the model's own chat template, for trainers without a builder of their own.

`ChatTokenizer` asks a builder for two things: the tokens of the opening messages, and those that a further message
adds. veRL has a builder for each family. This one needs only a processor with a chat template. For Qwen-VL both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from arpo_verl.agent.models.messages import message, reply_message, text_part

Messages = Sequence[Mapping[str, Any]]


class Merged(NamedTuple):
    """The tokens so far, with the new ones."""

    token_ids: list[int]


@dataclass(frozen=True)
class TemplateBuilder:
    """Renders messages with a processor's chat template."""

    processor: Any
    """A Qwen-VL processor, with its tokenizer."""

    def build_initial_tokens(self, messages: Messages) -> list[int]:
        """Return messages as tokens, one placeholder an image, up to where the model begins its reply."""
        text = self.processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def merge_context_tokens(self, previous: Messages, updated: Messages, token_ids: Sequence[int]) -> Merged:
        """Add messages that follow a reply, up to where the model begins the next one.

        Args:
            previous: the messages up to the reply.
            updated: these, and the new ones.
            token_ids: the tokens so far; the last one ends the reply's turn.
        """
        # We put a short reply before them, and cut after its turn, to keep what a template writes between turns.
        said = [message("system", text_part("-")), message("user", text_part("-")), reply_message("-")]
        new = list(updated[len(previous) :])
        ids = self.build_initial_tokens([*said, *new])
        ends = [place for place, id in enumerate(ids) if id == token_ids[-1]]
        return Merged([*token_ids, *ids[ends[-1 - len(new)] + 1 :]])
