"""Turn a conversation into tokens with veRL's Continuous Token builder. It counts images and processes none.

To learn how many placeholders an image needs, the builder would run the image processor and throw the pixels away. For
Qwen-VL that number follows from the image's size (`ImageGeometry`). So messages are rendered with one placeholder an
image, which is then repeated. Pixels are processed only where they are used: once by the rollout engine, once for
training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from arpo_verl.agent.models.messages import screenshot_message
from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.errors import ConfigError
from arpo_verl.types import Size

END_OF_TURN = "<|im_end|>"
_IMAGE, _VIDEO = "<|image_pad|>", "<|video_pad|>"
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

_TOKENS = (END_OF_TURN, _IMAGE, _VIDEO, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")


@dataclass(frozen=True)
class ChatTokenizer:
    """Makes one policy's tokens: of the prompt and of each further screenshot. It also decodes replies."""

    tokenizer: Any
    builder: Any
    """veRL's `ContinuousTokenBuilder` for the policy's family."""
    geometry: ImageGeometry
    image_id: int
    end_id: int
    placeholder_ids: frozenset[int]
    """Tokens that stand for a part of an image or video. A reply must not contain them. The three marks around them
    are ordinary tokens: positions and masks do not depend on them."""

    @classmethod
    def from_processor(
        cls, tokenizer: Any, processor: Any, builder: Any, mm_processor_kwargs: Mapping[str, Any] | None = None
    ) -> ChatTokenizer:
        """Read the token ids and image sizes from the policy's tokenizer and processor.

        Raises:
            ConfigError: they do not belong to the Qwen-VL family.
        """
        ids = {token: tokenizer.convert_tokens_to_ids(token) for token in _TOKENS}
        unknown = [
            token for token, id_ in ids.items() if id_ is None or id_ == tokenizer.unk_token_id != ids[END_OF_TURN]
        ]
        if unknown:
            raise ConfigError(f"the policy's tokenizer must have Qwen-VL's tokens, but {', '.join(unknown)} is missing")
        return cls(
            tokenizer=tokenizer,
            builder=builder,
            geometry=ImageGeometry.from_processor(processor, mm_processor_kwargs),
            image_id=ids[_IMAGE],
            end_id=ids[END_OF_TURN],
            placeholder_ids=frozenset((ids[_IMAGE], ids[_VIDEO])),
        )

    def prompt(self, messages: Messages, screen: Size) -> list[int]:
        """Return the opening messages with the first screenshot, up to where the model begins its reply."""
        return self.conversation(messages, [screen])

    def conversation(self, messages: Messages, screens: Sequence[Size], tools: Tools = None) -> list[int]:
        """Return the tokens of any messages, up to where the model begins its reply.

        Args:
            screens: sizes in pixels of the images in the messages, in order.
            tools: the tools that the model may call, in the format of OpenAI's API.

        Raises:
            ConfigError: the template does not render one placeholder an image, or a text contains a placeholder.
        """
        return self._expand(self.builder.build_initial_tokens(list(messages), **_given(tools)), *screens)

    def following(self, last_id: int, messages: Messages, screens: Sequence[Size], tools: Tools = None) -> list[int]:
        """Return the tokens that these messages add after a reply; see `conversation`.

        Args:
            last_id: the last token of the reply.
        """
        shown = self.builder.merge_context_tokens([], list(messages), [self.end_id], **_given(tools)).token_ids
        return self._turn_end(last_id) + self._expand(shown[1:], *screens)

    def next_reply(self, last_id: int) -> list[int]:
        """Return the tokens between a reply whose screenshot is not shown and the next reply.

        Args:
            last_id: the last token of the reply.
        """
        behind_the_turn = len(self._shown) - self._shown[::-1].index(self.end_id)
        return [*self._turn_end(last_id), *self._shown[behind_the_turn:]]

    def next_screenshot(self, last_id: int, screen: Size) -> list[int]:
        """Return the tokens between a reply and the next: the end of its turn if it is missing, and a screenshot.

        Args:
            last_id: the last token of the sequence so far.
            screen: the screenshot's size in pixels.
        """
        return self._turn_end(last_id) + self._expand(self._shown[1:], screen)

    def plain(self, text: str) -> str:
        """Return a text so that no part of it becomes a special token: `<|im_end|>` as `< |im_end|>`."""
        for token in self._special:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def ends_turn(self, token_id: int) -> bool:
        """Whether the model ended its reply with this token."""
        return token_id in (self.end_id, self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode a reply without special tokens. UI-TARS's box tokens are special, and optional."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def texts(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Decode each token by itself, special tokens too. A part of a character becomes U+FFFD."""
        for token_id in set(token_ids) - self._texts.keys():
            self._texts[token_id] = self.tokenizer.decode([token_id])
        return tuple(self._texts[token_id] for token_id in token_ids)

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {}

    @cached_property
    def _special(self) -> list[str]:
        """All special tokens. `all_special_tokens` has only those that the tokenizer's settings name."""
        return [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]

    @cached_property
    def _shown(self) -> list[int]:
        """The end of a turn, a screenshot as one placeholder, and the start of the next reply. We render it once an
        episode: rendering takes 5 ms, and a row of a long history needs it tens of times."""
        shown: list[int] = self.builder.merge_context_tokens([], [screenshot_message()], [self.end_id]).token_ids
        return shown

    def _turn_end(self, last_id: int) -> list[int]:
        # The engine may leave the end token out, or the model may end with another one. The turn must be closed anyway.
        return [] if last_id == self.end_id else [self.end_id]

    def _expand(self, token_ids: Sequence[int], *screens: Size) -> list[int]:
        """Repeat each image placeholder once for each visual token of its image."""
        if token_ids.count(self.image_id) != len(screens):
            raise ConfigError(
                "the policy's chat template must render a screenshot as one image placeholder, got "
                f"{token_ids.count(self.image_id)} for {len(screens)}; does a message hold <|image_pad|>?"
            )
        if not (self.placeholder_ids - {self.image_id}).isdisjoint(token_ids):
            raise ConfigError("no message may hold <|video_pad|>, since no video is shown to the policy")
        expanded: list[int] = []
        images = iter(screens)
        for token_id in token_ids:
            expanded += [token_id] * (self.geometry.num_tokens(next(images)) if token_id == self.image_id else 1)
        return expanded


def _given(tools: Tools) -> dict[str, Any]:
    return {"tools": list(tools)} if tools else {}
