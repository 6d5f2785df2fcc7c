"""A server's answer to our request for a reply, as OpenAI's chat completions, and whether it saw our screenshots. Pure.

It comes from others, so we read it within bounds.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from arpo_verl.agent.harness.chat_completions import ToolCall
from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.errors import ActionParseError, ConfigError, EndpointError
from arpo_verl.lib.untrusted import encodable
from arpo_verl.types import Point, Size

logger = logging.getLogger(__name__)

_NO_CALL_PARSER = (
    "start it without a parser of tool calls (vLLM: without --enable-auto-tool-choice and --tool-call-parser; SGLang: "
    "without --tool-call-parser)"
)
_NO_REASONING_PARSER = "start it without a parser of reasoning (vLLM, SGLang: without --reasoning-parser)"
NO_FILTER = "turn its filter off, or leave the task out"
_CALLS = dict.fromkeys(("tool_calls", "function_call"), _NO_CALL_PARSER)
_REASONING = dict.fromkeys(("reasoning_content", "reasoning", "reasoning_details", "thinking"), _NO_REASONING_PARSER)
_FILTERS = dict.fromkeys(
    ("refusal", "content_filter", "safety", "sensitive", "recitation", "prohibited_content", "blocklist"), NO_FILTER
)
"""Where a server puts an answer instead of the text, what it sets as `finish_reason` then, and what to do about it. The
model's text is complete without its reasoning alone."""
_PLACES = {*_CALLS, *_REASONING, *_FILTERS}
_ABORTED = (
    *("abort", "aborted", "cancelled", "canceled", "error", "failed", "timeout", "network_error"),
    *("engine_overloaded", "insufficient_system_resource"),
)
"""Reasons for the end of a reply that the engine caused."""
_CUT = ("length", "max_tokens", "model_length")
"""Reasons for the end of a reply that had too many tokens."""
MARK_TOKENS = 64
"""Most tokens of a chat's marks around a reply and a screenshot; Qwen's template has 11."""
CHANCE = 1e-6
"""We warn when the probability that all of a model's positions are up to 1000 by chance is below this."""
TURN_TOKENS = 16
"""Tokens of the chat's marks around a screenshot and the next reply: eleven in Qwen's template."""
_MANY_TOKENS = 1 << 30
"""No sequence has so many tokens: we ignore such a count."""


class _Choice(msgspec.Struct):
    message: dict[str, Any]
    finish_reason: Any = None
    error: Any = None


class _Answer(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    error: Any = None
    usage: Any = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


@dataclass(frozen=True)
class ServerReply:
    """A server's reply to a request of ours."""

    text: str
    calls: list[ToolCall]
    """Calls of tools, apart from the text, if tools were offered."""
    is_cut: bool
    """Whether it had too many tokens and has no end."""
    total_tokens: int
    """Tokens up to its end by the server's count; 0 if the server does not say."""
    prompt_tokens: int
    """Tokens of the prompt by the server's count; 0 if the server does not say."""
    reply_tokens: int
    """Most tokens that it can have."""


def read_answer(
    answer: Mapping[str, Any], max_tokens: int, shown: Callable[[str], str], with_tools: bool = False
) -> ServerReply:
    """Read a server's answer.

    Args:
        max_tokens: most tokens of the reply, as we asked.
        shown: makes a server's text fit for a message.
        with_tools: whether tools were offered, so that calls may be apart from the text.

    Raises:
        EndpointError: the answer has no reply.
        ConfigError: the server put it elsewhere than into its text, or filtered it.
    """
    try:
        # JSON can have half of a character, which we could neither show nor send.
        read = msgspec.convert(json.loads(encodable(json.dumps(answer, ensure_ascii=False))), _Answer)
        choice = read.choices[0]
        text, apart = _text_of(choice.message)
    except ValueError as error:
        raise EndpointError(f"the server does not answer as OpenAI's API: {shown(str(answer))}") from error
    message, reason = choice.message, str(choice.finish_reason).lower()
    is_silent = not text.strip() and not message.get("tool_calls")
    for name, remedy in (_FILTERS | ({} if with_tools else _CALLS) | (_REASONING if is_silent else {})).items():
        if name in apart or reason == name:
            said = shown(str(message))
            raise ConfigError(f"the server gives a reply as {name} instead of text; {remedy}; it answered {said}")
    if broken := choice.error or read.error or (reason in _ABORTED and reason):
        raise EndpointError(f"the server's engine broke off a reply: {shown(str(broken))}")
    total, prompt, reply = _read_usage(read.usage, text)
    tokens = max_tokens if reason in _CUT else reply
    if is_silent and not text and tokens > TURN_TOKENS:
        raise ConfigError(f"the server gives a reply of {tokens} tokens without their text; {_NO_REASONING_PARSER}")
    calls = message.get("tool_calls") or () if with_tools else ()
    try:
        read_calls = msgspec.convert(calls, list[ToolCall])
    except ValueError as error:
        raise EndpointError(f"the server must give calls of tools as OpenAI's API, got {shown(str(calls))}") from error
    return ServerReply(text, read_calls, reason in _CUT, total, prompt, reply)


def _text_of(message: Mapping[str, Any]) -> tuple[str, set[str]]:
    """Return a message's text, and the names of what it has beside the text: fields, and parts of other types.

    Raises:
        ValueError: it is no message.
    """
    apart = {name for name, value in message.items() if value and str(value).strip()}
    # Without a content the model wrote only its end, or only what the server reports elsewhere.
    if "content" not in message and not apart & _PLACES:
        raise ValueError("no content")
    content = msgspec.convert(message.get("content"), str | list[_Part] | None)
    parts = [_Part("text", content)] if isinstance(content, str) else content or []
    texts = [part.text for part in parts if part.type not in _PLACES]
    if None in texts:
        raise ValueError("a part without a text")
    return "".join(filter(None, texts)), apart | {part.type for part in parts}


def _read_usage(usage: Any, text: str) -> tuple[int, int, int]:
    """Return the tokens up to the reply's end and of the prompt, 0 if unknown, and the most that the reply can have."""
    fields = usage if isinstance(usage, Mapping) else {}
    counts = (fields.get(name) for name in ("total_tokens", "prompt_tokens", "completion_tokens"))
    total, prompt, reply = (count if type(count) is int and 0 < count < _MANY_TOKENS else 0 for count in counts)
    # Half a character of the model's comes back as one with more tokens; no token has less than a byte.
    if not reply or "\ufffd" in text:
        reply = len(text.encode("utf-8", "replace"))
    return total, prompt, reply


class PromptGrowth:
    """Compares the growth of a conversation's prompts with the tokens that a screenshot should add.

    Args:
        geometry: how the model's processor resizes screenshots.
    """

    def __init__(self, geometry: ImageGeometry):
        self._geometry = geometry
        self._before: tuple[int, int, int] | None = None

    def check(self, prompt_tokens: int, reply_tokens: int, screens: Sequence[Size], first: int) -> None:
        """Check a server's answer.

        Args:
            prompt_tokens: tokens of the request, by the server's count; 0 if it does not say.
            reply_tokens: most tokens of its reply.
            screens: sizes of all screenshots of the episode up to this request.
            first: index of the first one that was sent.

        Raises:
            ConfigError: the model saw the newest screenshots in another size than we sent.
        """
        before, self._before = self._before, (first, prompt_tokens, reply_tokens)
        if prompt_tokens == 0:
            return
        sent = screens[first:]
        if before is not None and before[0] == first and before[1] > 0:
            least, grown = self._geometry.num_tokens(screens[-1]), prompt_tokens - before[1]
            if not least <= grown <= least + before[2] + MARK_TOKENS:
                why = f"prompts grew by {grown:,} tokens, with at most {before[2]:,} of a reply among them"
                raise self._mismatch(screens[-1], why)
        elif prompt_tokens < sum(map(self._geometry.num_tokens, sent)):
            raise self._mismatch(screens[-1], f"a prompt with {len(sent)} of them has {prompt_tokens:,} tokens")

    def _mismatch(self, screen: Size, why: str) -> ConfigError:
        image, tokens = self._geometry.image_size(screen), self._geometry.num_tokens(screen)
        limits = {"min_pixels": self._geometry.min_pixels, "max_pixels": self._geometry.max_pixels}
        return ConfigError(
            f"the server seems to resize our screenshots of {image.width}x{image.height} pixels, so that clicks would "
            f"miss: each should have {tokens:,} tokens, but {why} (its usage.prompt_tokens). Start it with the limits "
            f"of this evaluation, as `vllm serve --mm-processor-kwargs '{json.dumps(limits)}'`, or give the evaluation "
            "the server's limits: --min-pixels and --max-pixels, or --processor FOLDER"
        )


class CoordinateRange:
    """Warns once if a model of a family that reads pixels never writes a position above 1000, as if in thousandths.

    Without a warning its clicks would miss, and it would only seem weak.

    Args:
        family: name of the model's family.
    """

    def __init__(self, family: str):
        self._name = family
        self._family = load_family(family)
        self._is_open = self._family.coordinates == "pixels"
        self._positions = 0
        self._log_chance = 0.0

    def see(self, reply: str, image: Size) -> None:
        """Count the positions of a reply; they are in pixels of `image`."""
        if not self._is_open or image.width <= 1001:
            return
        try:
            actions = self._family.parse(reply, image, image).actions
        except ActionParseError:
            return
        points = [getattr(action, name, None) for action in actions for name in ("point", "start", "end")]
        for point in (point for point in points if isinstance(point, Point)):
            self._is_open = self._is_open and max(point) <= 1000
            self._positions += 1
            self._log_chance += math.log(1000 / image.width)
        if self._is_open and self._log_chance < math.log(CHANCE):
            self._is_open = False
            logger.warning(
                "none of the first %d positions is above 1000, in screenshots of %dx%d pixels: the model seems to "
                "write thousandths, but gui_agent.model_family=%s reads pixels, so clicks miss; name the model's own "
                "family, such as --agent model_family=qwen3_vl or ui_tars_10",
                *(self._positions, *image, self._name),
            )
