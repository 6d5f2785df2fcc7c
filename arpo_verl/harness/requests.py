"""A harness's request for a reply, read within bounds: OpenAI's chat completions, as far as a policy can answer them.
Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NoReturn

from arpo_verl.errors import RequestError
from arpo_verl.models.messages import image_part, text_part
from arpo_verl.untrusted import is_deeper, parse_json, printable

MOST_MESSAGES = 1024
"""Each that is new to a row takes 1.4 ms to render."""
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1000
MOST_ID_CHARACTERS = 200
MOST_VALUES = 1 << 18
"""Commas, colons and brackets in a body: each value of JSON takes 64 bytes and more once it is read, while nothing else
of this process runs."""
MOST_LEVELS = 64
"""Of lists and objects in tools and in a call's arguments. An episode's record has ten more around them, and no reader
takes more than 100."""
UNTRAINED = "-untrained"
"""Ends the name of a model whose replies are not trained."""
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "logit_bias"),
)
"""The recipe's in every request, whatever a client sends."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REFUSED = {
    "response_format": "the policy writes as it was trained to; ask for the form in the prompt",
    "logprobs": "log-probs are for training alone",
    "functions": "use tools",
}


@dataclass(frozen=True)
class Call:
    """A call of a tool in a reply."""

    name: str
    arguments: str
    """As the policy wrote them: JSON, if it wrote any."""
    id: str = field(default="", compare=False)
    """Which the tool's answer names; empty where nobody gave one."""


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    content: tuple[Mapping[str, str], ...]
    """The parts that a chat template renders; each image is a place."""
    images: tuple[str, ...] = field(default=(), repr=False)
    """The data URLs of the images in these places."""
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    """Id of the call that a tool's message answers."""
    image_ids: tuple[bytes, ...] = ()
    """Hash of each image."""

    @property
    def text(self) -> str:
        """Its words."""
        return "".join(part["text"] for part in self.content if part["type"] == "text")

    @property
    def spoken(self) -> tuple[object, ...]:
        """What makes two turns of the model one: clients strip a reply, and write a call's arguments anew."""
        return self.text.strip(), *((call.name, _canonical(call.arguments)) for call in self.calls)

    @property
    def key(self) -> bytes:
        """Hash of all of it."""
        said: Any = self.spoken if self.role == "assistant" else self.content
        return sha256(json.dumps([self.role, said, self.answers]).encode() + b"".join(self.image_ids)).digest()

    def shown(self) -> dict[str, Any]:
        """As a chat template takes it."""
        shown: dict[str, Any] = {"role": self.role, "content": [dict(part) for part in self.content]}
        if self.calls:
            functions = [{"name": call.name, "arguments": _loaded(call.arguments)} for call in self.calls]
            shown["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        if self.answers is not None:
            shown["tool_call_id"] = self.answers
        return shown

    def record(self, shown: Sequence[bytes]) -> dict[str, Any]:
        """See `ChatRequest.record`."""
        document, ids = self.shown(), iter(self.image_ids)
        for part in document["content"] if shown else ():
            if part["type"] == "image":
                part["screenshot"] = shown.index(next(ids))
        return document


@dataclass(frozen=True)
class ChatRequest:
    """What is asked."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    stream_usage: bool = False
    """Whether a stream ends with a chunk that has no choice but the tokens' number; a client that did not ask for it
    would look for one."""
    replaced: tuple[str, ...] = ()
    """Sampling parameters that the client set."""

    @cached_property
    def num_bytes(self) -> int:
        """Of its text as JSON, images left out.

        Raises:
            TypeError, ValueError: it cannot be written, as half of a character, or a number that JSON does not have.
        """
        return len(json.dumps(self.record(), ensure_ascii=False, allow_nan=False).encode())

    def record_bytes(self, known: int) -> int:
        """Bytes that an episode's file gets of it, in which it is three levels deep; see `record`."""
        return len(json.dumps([[[self.record(known)]]], indent=1, ensure_ascii=False).encode())

    @property
    def is_trained(self) -> bool:
        return not self.model.endswith(UNTRAINED)

    def prefixes(self) -> list[bytes]:
        """Of each message, a hash of the conversation up to it."""
        running = sha256(json.dumps(self.tools, sort_keys=True, default=str).encode()).digest()
        return [running := following(running, message) for message in self.messages]

    def record(self, known: int = 0, turn: int | None = None, shown: Sequence[bytes] = ()) -> dict[str, Any]:
        """What is written of it: the messages behind the first `known`, with a number in the place of each image.

        Args:
            known: how many messages an earlier turn has, its reply included.
            turn: the number of that turn.
            shown: the episode's images, by name.
        """
        return {
            "model": self.model,
            "after_messages": known,
            "after_turn": turn,
            "messages": [message.record(shown) for message in self.messages[known:]],
            **({"tools": list(self.tools)} if self.tools else {}),
            **({"stop": list(self.stops)} if self.stops else {}),
        }


def renumbered(request: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """A request's record with other numbers of its screenshots."""

    def part(of: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**of, "screenshot": numbers[of["screenshot"]]} if "screenshot" in of else of

    messages = [{**message, "content": list(map(part, message["content"]))} for message in request["messages"]]
    return {**request, "messages": messages}


def following(prefix: bytes, message: Message) -> bytes:
    """The hash of a conversation, given the hash of what is before its last message."""
    return sha256(prefix + message.key).digest()


def read_request(body: bytes | Mapping[str, Any]) -> ChatRequest:
    """Read a request.

    Args:
        body: JSON, or what it says.

    Raises:
        RequestError: it is none that we answer; says why.
    """
    if isinstance(body, bytes) and sum(map(body.count, (b",", b":", b"[", b"{"))) > MOST_VALUES:
        raise RequestError(f"the body must have at most {MOST_VALUES} values")
    try:
        asked = parse_json(body) if isinstance(body, bytes) else body
    except ValueError as error:
        raise RequestError(f"the body must be JSON: {error}") from error
    if not isinstance(asked, Mapping):
        _refuse("the body", "an object", asked)
    for name, instead in _REFUSED.items():
        if asked.get(name):
            raise RequestError(f"{name} is not supported: {instead}")
    if asked.get("n") not in (None, 1):
        _refuse("n", "1; ask again for another reply", asked["n"])
    messages = asked.get("messages")
    if not isinstance(messages, Sequence) or not 0 < len(messages) <= MOST_MESSAGES:
        _refuse("messages", f"a list of 1 to {MOST_MESSAGES}", messages)
    read = tuple(read_message(message) for message in messages)
    if read[0].role in ("assistant", "tool") or read[-1].role == "assistant":
        _refuse("messages", "from system or user first to user or tool last", f"{read[0].role} ... {read[-1].role}")
    options = asked.get("stream_options")
    max_tokens = asked.get("max_completion_tokens") or asked.get("max_tokens")
    if max_tokens is not None and not (type(max_tokens) is int and max_tokens > 0):
        _refuse("max_tokens", "a whole number from 1", max_tokens)
    request = ChatRequest(
        model=str(asked.get("model") or "policy")[:200],
        messages=read,
        tools=() if asked.get("tool_choice") == "none" else tuple(_tools(asked.get("tools"))),
        stops=tuple(_stops(asked.get("stop"))),
        max_tokens=max_tokens,
        stream=asked.get("stream") is True,
        stream_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        replaced=tuple(name for name in SAMPLING if asked.get(name) is not None),
    )
    try:
        _ = request.num_bytes
    except (RecursionError, TypeError, ValueError) as error:
        raise RequestError(f"a request must be valid JSON in UTF-8: {error}") from error
    return request


def image_bytes(url: str) -> bytes:
    """The file in a data URL.

    Raises:
        RequestError: it is no such URL.
    """
    head, comma, data = url.partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64") and comma):
        raise RequestError(
            "an image must be a data URL, data:image/png;base64,..., since nothing is fetched for a harness, got "
            + repr(printable(url[:60]))
        )
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"an image's data URL must be base64: {error}") from error


def read_message(message: object) -> Message:
    """Read one message of a conversation.

    Raises:
        RequestError: it is none.
    """
    if not isinstance(message, Mapping) or message.get("role") not in list(_ROLES):
        _refuse("a message", f"an object whose role is one of {', '.join(_ROLES)}", message)
    parts, images = [], []
    for part in _parts(message.get("content")):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            parts.append(text_part(part["text"]))
        elif kind == "image_url":
            images.append(_url(part.get("image_url")))
            parts.append(image_part())
        else:
            _refuse("a part of a message", "of type text or image_url", part)
    answers, calls = message.get("tool_call_id"), message.get("tool_calls") or ()
    if not isinstance(calls, Sequence):
        _refuse("a message's tool_calls", "a list", calls)
    return Message(
        role=_ROLES[str(message["role"])],
        content=tuple(parts),
        images=tuple(images),
        calls=tuple(map(_call, calls)),
        answers=None if answers is None else str(answers)[:MOST_ID_CHARACTERS],
        image_ids=tuple(sha256(url.encode()).digest() for url in images),
    )


def _parts(content: object) -> Iterator[Any]:
    if isinstance(content, str):
        yield text_part(content)
    elif isinstance(content, Sequence):
        yield from content
    elif content is not None:
        _refuse("a message's content", "text or a list of parts", content)


def _url(image_url: object) -> str:
    url = image_url.get("url") if isinstance(image_url, Mapping) else image_url
    if not isinstance(url, str) or not url.isascii():
        _refuse("image_url", 'an object such as {"url": "data:image/png;base64,..."}', image_url)
    return url


def _call(call: object) -> Call:
    named = call if isinstance(call, Mapping) else {}
    function = named.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        _refuse("a message's tool_calls", "calls of functions with their names", call)
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Call(function["name"], text, str(named.get("id") or "")[:MOST_ID_CHARACTERS])


def _tools(tools: object) -> Iterator[Mapping[str, Any]]:
    if tools is not None and not isinstance(tools, Sequence):
        _refuse("tools", "a list", tools)
    if is_deeper(tools, MOST_LEVELS):
        raise RequestError(f"tools must have at most {MOST_LEVELS} levels of lists and objects")
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            _refuse("a tool", "a function with its name", tool)
        yield tool


def _stops(stop: object) -> list[str]:
    stops = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Sequence) else []
    is_none = stop is None or stop == ""
    are_texts = all(isinstance(one, str) and 0 < len(one) <= MOST_STOP_CHARACTERS for one in stops)
    if not is_none and not (0 < len(stops) <= MOST_STOPS and are_texts):
        _refuse("stop", f"up to {MOST_STOPS} texts of at most {MOST_STOP_CHARACTERS} characters", stop)
    return [] if is_none else stops


def _loaded(arguments: str) -> Any:
    """What they say; as they stand, where that is no JSON, is nested too deeply, or has a number or half of a character
    that could not be written."""
    try:
        loaded = parse_json(arguments, _no_number)
        json.dumps(loaded, ensure_ascii=False).encode()
    except ValueError:
        return arguments
    return arguments if is_deeper(loaded, MOST_LEVELS) else loaded


def _no_number(said: str) -> NoReturn:
    raise ValueError(said)


def _canonical(arguments: str) -> str:
    return json.dumps(_loaded(arguments), sort_keys=True)


def _refuse(name: str, expected: str, got: object) -> NoReturn:
    raise RequestError(f"{name} must be {expected}, got {printable(repr(got)[:200])}")
