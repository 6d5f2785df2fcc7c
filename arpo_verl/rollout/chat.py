"""The conversation in tokens, through veRL's Continuous Token builder; each image counted, none processed.

The builder's own way to tokenize a message with an image runs the image processor for the length of its placeholder
and throws the pixels away. For Qwen-VL that length follows from the image's size (`ImageGeometry`), so messages are
rendered with one placeholder token an image, which is then repeated. Pixels are processed where they are used: once by
the rollout engine, once for training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from arpo_verl.errors import ConfigError
from arpo_verl.models.messages import screenshot_message
from arpo_verl.rollout.vision import ImageGeometry
from arpo_verl.types import Size

END_OF_TURN = "<|im_end|>"
_IMAGE, _VIDEO = "<|image_pad|>", "<|video_pad|>"
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

_TOKENS = (END_OF_TURN, _IMAGE, _VIDEO, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")


@dataclass(frozen=True)
class ChatTokenizer:
    """Tokens of the prompt, of each further screenshot, and the text of replies, for one policy."""

    tokenizer: Any
    builder: Any
    """veRL's `ContinuousTokenBuilder` for the policy's family."""
    geometry: ImageGeometry
    image_id: int
    end_id: int
    placeholder_ids: frozenset[int]
    """Tokens that stand for a part of an image or video: in a reply there is none behind them. The three marks around
    them are tokens as any other: neither positions nor masks are read off them."""

    @classmethod
    def from_processor(
        cls, tokenizer: Any, processor: Any, builder: Any, mm_processor_kwargs: Mapping[str, Any] | None = None
    ) -> ChatTokenizer:
        """Read what is needed from the policy's tokenizer and processor.

        Raises:
            ConfigError: they are not of the Qwen-VL family.
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

    def prompt(self, messages: Sequence[Mapping[str, Any]], screen: Size) -> list[int]:
        """The opening messages, the first screenshot's place among them, up to where the model begins its reply."""
        ids = self.builder.build_initial_tokens(list(messages))
        return self._expand(ids, screen)

    def opening(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Messages without a screenshot, up to where the model begins a reply."""
        ids: list[int] = self.builder.build_initial_tokens(list(messages))
        return ids

    def conversation(self, messages: Messages, screens: Sequence[Size], tools: Tools = None) -> list[int]:
        """Any messages, up to where the model begins a reply.

        Args:
            screens: sizes in pixels of the images among them, in order.
            tools: that the model may call, as OpenAI's API has them.

        Raises:
            ConfigError: the template does not render one placeholder an image, or a text has one.
        """
        return self._expand(self.builder.build_initial_tokens(list(messages), **_given(tools)), *screens)

    def following(self, last_id: int, messages: Messages, screens: Sequence[Size], tools: Tools = None) -> list[int]:
        """What follows a reply where these messages do; see `conversation`.

        Args:
            last_id: the last token of the reply.
        """
        shown = self.builder.merge_context_tokens([], list(messages), [self.end_id], **_given(tools)).token_ids
        return self._turn_end(last_id) + self._expand(shown[1:], *screens)

    def next_reply(self, last_id: int) -> list[int]:
        """What follows a reply whose screenshot is not shown, up to where the next one begins.

        Args:
            last_id: the last token of the reply.
        """
        behind_the_turn = len(self._shown) - self._shown[::-1].index(self.end_id)
        return [*self._turn_end(last_id), *self._shown[behind_the_turn:]]

    def next_screenshot(self, last_id: int, screen: Size) -> list[int]:
        """What follows a reply: the end of its turn as far as it is missing, a screenshot, the begin of the next reply.

        Args:
            last_id: the last token of the sequence so far.
            screen: the screenshot's size in pixels.
        """
        return self._turn_end(last_id) + self._expand(self._shown[1:], screen)

    def ends_turn(self, token_id: int) -> bool:
        """Whether the model ended its reply with this token."""
        return token_id in (self.end_id, self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)

    def text(self, token_ids: Sequence[int]) -> str:
        """A reply's text, without special tokens: the box tokens of UI-TARS are special, and optional."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def texts(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The text of each token by itself, special tokens too; U+FFFD where a token is only a part of a character."""
        for token_id in set(token_ids) - self._texts.keys():
            self._texts[token_id] = self.tokenizer.decode([token_id])
        return tuple(self._texts[token_id] for token_id in token_ids)

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {}

    @cached_property
    def _shown(self) -> list[int]:
        """A turn's end, a screenshot of one placeholder, and the begin of the next reply. Rendered once an episode: it
        takes 5 ms, and a row of a long history holds tens of them."""
        shown: list[int] = self.builder.merge_context_tokens([], [screenshot_message()], [self.end_id]).token_ids
        return shown

    def _turn_end(self, last_id: int) -> list[int]:
        # The engine may leave the end token out, or the model end by another; a turn must be closed all the same.
        return [] if last_id == self.end_id else [self.end_id]

    def _expand(self, token_ids: Sequence[int], *screens: Size) -> list[int]:
        """Repeat each image placeholder to as many as its image has visual tokens."""
        if token_ids.count(self.image_id) != len(screens):
            raise ConfigError(
                "the policy's chat template must render a screenshot as one image placeholder, got "
                f"{token_ids.count(self.image_id)} for {len(screens)}; does an instruction hold <|image_pad|>?"
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
