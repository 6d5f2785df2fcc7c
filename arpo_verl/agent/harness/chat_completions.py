"""OpenAI's chat completions: an agent program's request and our answer to it. Pure.

The request comes from others, so we read it within bounds.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Literal, NoReturn

import msgspec

from arpo_verl.agent.models.messages import image_part, text_part
from arpo_verl.errors import RequestError
from arpo_verl.lib.untrusted import is_deeper, parse_json, printable

MOST_MESSAGES = 1024
"""Each message that is new to a row takes 1.4 ms to render."""
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1000
MOST_VALUES = 1 << 18
"""Commas, colons and brackets in a body: each value of JSON takes 64 bytes and more once it is read, while nothing else
of this process runs."""
MOST_LEVELS = 64
"""Levels of lists and objects in tools and in a call's arguments. An episode's record has ten more around them, and no
reader takes more than 100."""
UNTRAINED = "-untrained"
"""End of the name of a model whose replies are not trained."""
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "logit_bias"),
)
"""Fields in which each request has the recipe's values, whatever a client sends."""
_REFUSED = {
    "response_format": "the policy writes as it was trained to; ask for the form in the prompt",
    "logprobs": "log-probs are for training alone",
    "functions": "use tools",
}


class Function(msgspec.Struct, frozen=True):
    """The function that a call names."""

    name: str
    arguments: Any = "{}"
    """As the policy wrote them: JSON, if it wrote any."""

    def __post_init__(self) -> None:
        if not isinstance(self.arguments, str):
            msgspec.structs.force_setattr(self, "arguments", json.dumps(self.arguments))


class ToolCall(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A call of a tool in a reply."""

    function: Function
    id: Any = None
    """Which the tool's answer names."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "id", str(self.id or f"call_{secrets.token_hex(8)}"))


class _Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class _Url(msgspec.Struct, frozen=True):
    url: str


class _Image(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    image_url: _Url | str


class ChatMessage(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Text | _Image] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    """Id of the call that a tool's message answers."""

    def __post_init__(self) -> None:
        if self.role == "developer":
            msgspec.structs.force_setattr(self, "role", "system")

    @cached_property
    def parts(self) -> list[dict[str, str]]:
        """The parts that a chat template renders; each image is a place."""
        parts = [_Text(self.content)] if isinstance(self.content, str) else self.content or []
        return [text_part(part.text) if isinstance(part, _Text) else image_part() for part in parts]

    @cached_property
    def images(self) -> list[str]:
        """The data URLs of the images in these places."""
        parts = self.content if isinstance(self.content, list) else []
        urls = [part.image_url for part in parts if isinstance(part, _Image)]
        return [url if isinstance(url, str) else url.url for url in urls]

    @cached_property
    def image_ids(self) -> list[bytes]:
        """Hash of each image."""
        return [sha256(url.encode(errors="surrogatepass")).digest() for url in self.images]

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self.parts if part["type"] == "text")

    @property
    def spoken(self) -> tuple[object, ...]:
        """What makes two turns of the model one: clients strip a reply, and write a call's arguments anew."""
        functions = [call.function for call in self.tool_calls or ()]
        return self.text.strip(), *((one.name, _canonical(one.arguments)) for one in functions)

    @property
    def key(self) -> bytes:
        """Hash of the whole message."""
        said: Any = self.spoken if self.role == "assistant" else self.parts
        return sha256(json.dumps([self.role, said, self.tool_call_id]).encode() + b"".join(self.image_ids)).digest()

    def shown(self) -> dict[str, Any]:
        """Return the message as a chat template takes it."""
        shown: dict[str, Any] = {"role": self.role, "content": [dict(part) for part in self.parts]}
        if self.tool_calls:
            functions = [
                {"name": f.name, "arguments": _loaded(f.arguments)} for f in (c.function for c in self.tool_calls)
            ]
            shown["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        if self.tool_call_id is not None:
            shown["tool_call_id"] = self.tool_call_id
        return shown

    def sent(self, urls: Sequence[str] = ()) -> dict[str, Any]:
        """Return the message as OpenAI's API takes it, with other URLs of its images."""
        return {**msgspec.to_builtins(self), "content": write_content(self.parts or [text_part("")], iter(urls))}

    def record(self, shown: Sequence[bytes]) -> dict[str, Any]:
        """See `ChatRequest.record`."""
        document, ids = self.shown(), iter(self.image_ids)
        for part in document["content"] if shown else ():
            if part["type"] == "image":
                part["screenshot"] = shown.index(next(ids))
        return document


class _Tool(msgspec.Struct):
    function: Function


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_Stop = Annotated[str, msgspec.Meta(max_length=MOST_STOP_CHARACTERS)]
_Tokens = Annotated[int, msgspec.Meta(ge=1)]


class _Request(msgspec.Struct):
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=MOST_MESSAGES)]
    model: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    stop: _Stop | Annotated[list[_Stop], msgspec.Meta(max_length=MOST_STOPS)] | None = None
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    n: Literal[1] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


@dataclass(frozen=True)
class ChatRequest:
    """An agent program's request for a reply."""

    model: str
    messages: tuple[ChatMessage, ...]
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
        """Bytes of its text as JSON, without images.

        Raises:
            TypeError, ValueError: it cannot be written, as half of a character, or a number that JSON does not have.
        """
        return len(json.dumps(self.record(), ensure_ascii=False, allow_nan=False).encode())

    def record_bytes(self, known: int) -> int:
        """Return the bytes that an episode's file gets of it, in which it is three levels deep; see `record`."""
        return len(json.dumps([[[self.record(known)]]], indent=1, ensure_ascii=False).encode())

    @property
    def is_trained(self) -> bool:
        return not self.model.endswith(UNTRAINED)

    def prefixes(self) -> list[bytes]:
        """Return for each message a hash of the conversation up to it."""
        running = sha256(json.dumps(self.tools, sort_keys=True, default=str).encode()).digest()
        return [running := following(running, message) for message in self.messages]

    def record(self, known: int = 0, turn: int | None = None, shown: Sequence[bytes] = ()) -> dict[str, Any]:
        """Return what a record has of it: the messages behind the first `known`, each image as a number.

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


def following(prefix: bytes, message: ChatMessage) -> bytes:
    """Return the hash of a conversation, given the hash of what is before its last message."""
    return sha256(prefix + message.key).digest()


def read_request(body: bytes | Mapping[str, Any]) -> ChatRequest:
    """Read a program's request.

    Args:
        body: JSON, or what it says.

    Raises:
        RequestError: we do not answer such a request; says why.
    """
    if isinstance(body, bytes) and sum(map(body.count, (b",", b":", b"[", b"{"))) > MOST_VALUES:
        raise RequestError(f"the body must have at most {MOST_VALUES} values")
    try:
        asked = parse_json(body) if isinstance(body, bytes) else body
        for name, instead in _REFUSED.items():
            if isinstance(asked, Mapping) and asked.get(name):
                raise RequestError(f"{name} is not supported: {instead}")
        read = msgspec.convert(asked, _Request)
        stops = [read.stop] if isinstance(read.stop, str) else read.stop or []
        request = ChatRequest(
            model=(read.model or "policy")[:200],
            messages=tuple(read.messages),
            tools=() if read.tool_choice == "none" else tuple(asked.get("tools") or ()),
            stops=tuple(filter(None, stops)),
            max_tokens=read.max_completion_tokens or read.max_tokens,
            stream=read.stream is True,
            stream_usage=read.stream_options is not None and read.stream_options.include_usage is True,
            replaced=tuple(name for name in SAMPLING if asked.get(name) is not None),
        )
        if is_deeper(list(request.tools), MOST_LEVELS):
            raise RequestError(f"tools must have at most {MOST_LEVELS} levels of lists and objects")
        _ = request.num_bytes
    except (RecursionError, TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        why = printable(str(error))[:300]
        raise RequestError(
            f"a request must be OpenAI's chat completion of texts and image_url, in UTF-8: {why}"
        ) from error
    first, last = read.messages[0].role, read.messages[-1].role
    if first in ("assistant", "tool") or last == "assistant":
        raise RequestError(f"messages must be from system or user first to user or tool last, got {first} ... {last}")
    return request


def image_bytes(url: str) -> bytes:
    """Return the file in a data URL.

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


def png_url(png: bytes) -> str:
    """Return the data URL of a picture in PNG."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def write_content(parts: Sequence[Mapping[str, Any]], urls: Iterator[str]) -> str | list[dict[str, Any]]:
    """Return the parts of a message for a chat template as OpenAI's API takes them.

    Text alone goes as a string, which every server takes.

    Args:
        urls: gives the URL of each image, in order.
    """
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return [
        {"type": "image_url", "image_url": {"url": next(urls)}} if part["type"] == "image" else dict(part)
        for part in parts
    ]


def write_answer(model: str, said: ChatMessage, reason: str, prompt: int, reply: int) -> dict[str, Any]:
    """Return the answer to a request for a reply.

    Args:
        reason: the `finish_reason`.
        prompt: tokens of the prompt.
        reply: tokens of the reply.
    """
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": said.sent(), "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply},
    }


def write_stream(answer: Mapping[str, Any], with_usage: bool) -> Iterator[bytes]:
    """Yield the events of an answer as a stream, the whole reply in one."""
    choice = answer["choices"][0]
    calls = [{"index": index, **call} for index, call in enumerate(choice["message"].get("tool_calls", ()))]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    head = {**answer, "object": "chat.completion.chunk"}
    usage = head.pop("usage")
    chunks = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        *([{"choices": [], "usage": usage}] if with_usage else []),
    ]
    for chunk in chunks:
        yield f"data: {json.dumps({**head, **chunk})}\n\n".encode()
    yield b"data: [DONE]\n\n"


def _loaded(arguments: str) -> Any:
    """Return what they say; as they stand, where that is no JSON, is nested too deeply, or has a number or half of a
    character that could not be written."""
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
