"""This policy is behind an OpenAI-compatible server: vLLM, SGLang, or a hosted one. We distrust what it sends.

Screenshots go as image messages. We resize them as training does, by the same function, so a server of the same model
need not resize them. Each request has the replies and screenshots that `gui_agent.context` shows, as training has them
in a row.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import io
import logging
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import requests
from PIL import Image
from urllib3.exceptions import ConnectTimeoutError, HTTPError

from arpo_verl.config import check_fields, number, require, whole
from arpo_verl.errors import ConfigError, EndpointError, RequestError
from arpo_verl.evaluation.mismatch import CoordinateRange, PromptGrowth
from arpo_verl.evaluation.policy import Sampling, reply_seed
from arpo_verl.evaluation.results import Trial
from arpo_verl.harness.policy_chat import TOO_LONG, Answer, Asked, PolicyChat
from arpo_verl.harness.requests import Call, ChatRequest, Message, read_message
from arpo_verl.images import LazyImage
from arpo_verl.models.messages import text_part
from arpo_verl.records.json_files import parse_json
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import Conversation, TokenLimits, Written
from arpo_verl.rollout.sequence import EpisodeSequence
from arpo_verl.rollout.vision import ImageGeometry
from arpo_verl.types import Size, StopReason, Task
from arpo_verl.untrusted import encodable

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_RESPONSE_BYTES = 4 << 20
MAX_MESSAGE = 300
"""Most characters of a server's error that we show."""
TRIED_AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529))
REFUSALS = frozenset((401, 402, 403, 404, 405))
"""Statuses after which no further request can succeed."""
LONGEST_REST_S = 60.0
AS_IN_TRAINING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "skip_special_tokens": False}
"""vLLM and SGLang take missing sampling options from the model's `generation_config.json`: Qwen2.5-VL's penalises
repetitions, even at temperature 0, and Qwen3-VL's cuts off at 20 tokens. veRL does neither. They also remove special
tokens from a reply, so these are missing when we send it back: UI-TARS marks coordinates with some."""
TAKE_THEM = ("vllm", "sglang", "arpo_verl")
"""Servers that know these fields, by their name in `owned_by`; others refuse unknown fields. The last one is
`benchmarks/model_server.py`."""
ABORTED = (
    *("abort", "aborted", "cancelled", "canceled", "error", "failed", "timeout", "network_error"),
    *("engine_overloaded", "insufficient_system_resource"),
)
"""Reasons for the end of a reply that the engine caused."""
_CUT = ("length", "max_tokens", "model_length")
"""Reasons for the end of a reply that had too many tokens."""
_NO_CALL_PARSER = (
    "start it without a parser of tool calls (vLLM: without --enable-auto-tool-choice and --tool-call-parser; SGLang: "
    "without --tool-call-parser)"
)
_NO_REASONING_PARSER = "start it without a parser of reasoning (vLLM, SGLang: without --reasoning-parser)"
_NO_FILTER = "turn its filter off, or leave the task out"
_CALLS = dict.fromkeys(("tool_calls", "function_call"), _NO_CALL_PARSER)
_REASONING = dict.fromkeys(("reasoning_content", "reasoning", "reasoning_details", "thinking"), _NO_REASONING_PARSER)
_FILTERS = dict.fromkeys(
    ("refusal", "content_filter", "safety", "sensitive", "recitation", "prohibited_content", "blocklist"), _NO_FILTER
)
"""Where a server puts an answer instead of the text, what it sets as `finish_reason` then, and what to do about it. The
model's text is complete without its reasoning alone."""
TURN_TOKENS = 16
"""Tokens of the chat's marks around a screenshot and the next reply: eleven in Qwen's template."""
_CHUNK_BYTES = 1 << 16
_MANY_TOKENS = 1 << 30
"""No sequence has so many tokens: we ignore such a count."""
_GRACE_S = 1.0
"""Added to the connection's own limits, whose errors say better what was wrong."""
_CONTEXT_LENGTH = re.compile(rb"context[_ ]length", re.IGNORECASE)
"""Part of the refusal of a request that is too long: OpenAI's code, and the words of vLLM and SGLang."""
_FILTERED = re.compile(rb"content_filter|data_inspection_failed|content_policy_violation", re.IGNORECASE)
"""Part of the refusal of a request that a filter stopped: the codes of Azure, Alibaba and LiteLLM."""
# Special tokens of Qwen's tokenizers: those for turns and images, and those that mark a place in a text.
_STRUCTURE = r"<\|(?:im_start|im_end|endoftext|vision_start|vision_end|vision_pad|image_pad|video_pad)\|>"
_MARKS = r"<\|(?:object_ref|box|quad)_(?:start|end)\|>"


@dataclass(frozen=True)
class Patience:
    """These limits are for one request."""

    timeout_s: Annotated[float, number(lambda x: x > 0, "more than 0 seconds")] = 300.0
    """Time-out from the connection to the last byte: a busy server lets a request wait before it writes a word."""
    attempts: Annotated[int, whole(1)] = 6
    """Attempts in all, if the server is overloaded, broken or gone."""
    rest_s: Annotated[float, number(lambda x: x >= 0, "0 or more seconds")] = 2.0
    """Pause before the second attempt, doubled before each further one; a server may ask for up to a minute."""

    def __post_init__(self) -> None:
        check_fields(self)


class Endpoint:
    """This sends requests to the two addresses of a server that we need.

    Args:
        url: URL of its API, `http://HOST:PORT/v1`; without a path it gets `/v1`.
        api_key: sent as a bearer token; it never appears in a message, record or setting.

    Raises:
        ConfigError: this is no such URL, or it contains a key, which would be recorded.
    """

    def __init__(self, url: str, api_key: str | None = None, patience: Patience | None = None):
        try:
            parts = urlsplit(url)
            ok = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
            ok = ok and not (parts.query or parts.fragment or parts.username or parts.password)
        except ValueError:
            ok = False
        shown = url.partition("?")[0].rpartition("@")[2]
        remedy = "put a key into an environment variable, see --api-key-env"
        require(ok, "--endpoint", "an URL such as http://127.0.0.1:8000/v1", shown, remedy)
        self.url = url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")
        self._key = api_key
        self._patience = patience or Patience()
        # The environment's proxies cannot reach this machine's loopback.
        self._by_proxy = parts.hostname not in ("127.0.0.1", "::1", "localhost")

    async def reply(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer of `chat/completions`.

        Raises:
            EndpointError: no usable answer came, after all attempts.
            ConfigError: the server refuses us.
        """
        return await self._ask("POST", "chat/completions", body)

    async def models(self) -> Mapping[str, Any]:
        """Return the answer of `models`. It raises as `reply` does."""
        return await self._ask("GET", "models", None)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        for attempt in range(1, self._patience.attempts + 1):
            try:
                return await self._in_time(partial(self._request, method, path, body))
            except _Again as again:
                if attempt == self._patience.attempts:
                    raise EndpointError(again.explain(self.url, path, attempt)) from again
                if attempt == 1 and isinstance(again, _NoConnection):
                    logger.warning("no server answers at %s yet (%s); we try again", self.url, again)
                rest_s = self._patience.rest_s * 2 ** (attempt - 1)
                await asyncio.sleep(min(max(rest_s, again.after_s), LONGEST_REST_S))
        raise AssertionError("at least one attempt")

    async def _in_time(self, request: Callable[[], T]) -> T:
        """Limit the time of a request: a server that sends slowly never runs into the connection's own time-outs."""
        try:
            async with asyncio.timeout(self._patience.timeout_s + _GRACE_S):
                return await in_daemon_thread(request)
        except TimeoutError:
            raise _Again("an answer that does not end") from None

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Send one request. It follows no redirection, which would pass on the key, and unpacks nothing."""
        deadline = time.monotonic() + self._patience.timeout_s
        headers = {"Accept-Encoding": "identity"}
        try:
            with requests.Session() as session:
                session.trust_env = self._by_proxy
                response = session.request(
                    method,
                    f"{self.url}/{path}",
                    json=body,
                    headers=headers,
                    auth=self._authorize,
                    timeout=self._patience.timeout_s,
                    stream=True,
                    allow_redirects=False,
                )
                with response:
                    content = _read(response, deadline)
                    self._check_status(response, content)
        except (requests.RequestException, HTTPError, OSError) as error:
            if (why := _why_no_connection(error)) is not None:
                raise _NoConnection(why) from None
            raise _Again(self.shown(f"{type(error).__name__}: {error}")) from None
        try:
            answer = parse_json(content)
        except ValueError:
            answer = None
        if not isinstance(answer, Mapping):
            raise _Again(f"no JSON object but {self.shown(repr(content))}")
        return answer

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        # Set this even without a key, since otherwise a .netrc would add one.
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request

    def _check_status(self, response: requests.Response, content: bytes) -> None:
        status = response.status_code
        if status == 200:
            return
        told = f"status {status}: {self.shown(content.decode('utf-8', 'replace'))}"
        if status in TRIED_AGAIN:
            raise _Again(told, _seconds(response.headers.get("Retry-After")))
        if status in REFUSALS or 300 <= status < 400:
            remedy = "see --endpoint, --model-name and --api-key-env"
            raise ConfigError(f"{self.url} refuses our requests, {told}; {remedy}")
        if _FILTERED.search(content):
            raise ConfigError(f"{self.url} filters a request, {told}; {_NO_FILTER}")
        kind = _TooLong if status == 400 and _CONTEXT_LENGTH.search(content) else EndpointError
        raise kind(f"{self.url} refused a request, {told}; is it longer than the model's context (--context)?")

    def shown(self, text: str) -> str:
        """Return a server's text for a message, without the key and without control characters."""
        text = (text.replace(self._key, "***") if self._key else text)[:MAX_MESSAGE]
        return "".join(c if c.isprintable() else " " for c in text)


@dataclass(frozen=True)
class ServedModel:
    """This is a model as its server lists it."""

    name: str
    context: int | None = None
    """Most tokens of a sequence; None if the server does not say."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a request that OpenAI's API lacks: `AS_IN_TRAINING` if the server knows them."""


Body = Callable[[Sequence[Mapping[str, Any]], int], dict[str, Any]]
"""(messages, number of the reply) -> a request for it."""


class EndpointPolicy:
    """This is a server's model, as a policy to evaluate.

    Args:
        model: the model.
        geometry: how the model's processor resizes screenshots; its coordinates are in the resized one.
        context: most tokens of a sequence; None takes the server's number.
        facts: what identifies the model, if the server's address and name do not.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: ServedModel,
        geometry: ImageGeometry,
        context: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ):
        self._facts = facts or {"endpoint": endpoint.url, "model": model.name}
        self._endpoint = endpoint
        self._model = model
        self._geometry = geometry
        self._context = context or model.context
        self._positions: dict[str, CoordinateRange] = {}

    @property
    def facts(self) -> dict[str, Any]:
        return {**self._facts, "context": self._context, **self._model.options, **vars(self._geometry)}

    def conversation(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> Conversation:
        """See `Policy`."""

        body = self._body(config, sampling, trial)
        positions = self._positions.setdefault(config.model_family, CoordinateRange(config.model_family))
        return _EndpointConversation(self._endpoint, body, config, self._geometry, self._context, positions)

    def chat(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> PolicyChat:
        """See `Policy`."""
        return _EndpointChat(self._endpoint, self._body(config, sampling, trial), self._geometry, self._context)

    def _body(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> Body:
        def body(messages: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any]:
            return {
                "model": self._model.name,
                "messages": list(messages),
                "max_tokens": config.max_reply_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": reply_seed(sampling, trial, number),
                **self._model.options,
            }

        return body


async def find_model(endpoint: Endpoint, name: str | None) -> ServedModel:
    """Return the model with this name, or the only one, with its context if the server gives it (vLLM, SGLang).

    Raises:
        ConfigError: the server has several models, or none with this name.
        EndpointError: it does not answer.
    """
    listed = (await endpoint.models()).get("data")
    models = {one["id"]: one for one in listed if _names_model(one)} if isinstance(listed, list) else {}
    if name is None and len(models) == 1:
        name = next(iter(models))
    known = f"one that {endpoint.url} has: {endpoint.shown(', '.join(sorted(models)[:20])) or 'it names none'}"
    if name is None or (models and name not in models):
        raise ConfigError(f"--model-name must be {known}; {'add it' if name is None else f'got {name}'}")
    card = models.get(name, {})
    context = card.get("max_model_len")
    options = AS_IN_TRAINING if card.get("owned_by") in TAKE_THEM else {}
    return ServedModel(name, context if type(context) is int and context > 0 else None, options)


class _EndpointConversation:
    """This is one episode: its messages so far, with each screenshot encoded once."""

    rows: tuple[EpisodeSequence, ...] = ()

    def __init__(
        self,
        endpoint: Endpoint,
        body: Body,
        config: GuiAgentConfig,
        geometry: ImageGeometry,
        context: int | None,
        positions: CoordinateRange,
    ):
        self._growth = PromptGrowth(geometry)
        self._positions = positions
        self._screens: list[Size] = []
        self._endpoint = endpoint
        self._body = body
        self._config = config
        self._geometry = geometry
        self._context = context
        self._urls: list[str] = []
        self._image_tokens: list[int] = []
        self._said: list[str] = []
        self._instruction = ""
        self._first = 0
        self._used = 0

    def image_size(self, screen: Size) -> Size:
        return self._geometry.image_size(screen)

    def open(self, task: Task, screen: Size) -> None:
        self._instruction = re.sub(_STRUCTURE, _as_text, task.instruction)
        self._image_tokens.append(self._geometry.num_tokens(screen))

    async def reply(self, images: list[Image.Image]) -> Written:
        """Ask for the next reply.

        Raises:
            EndpointError: the server gives no usable reply.
            ConfigError: it refuses us, resizes our screenshots, or puts the reply elsewhere than into its text.
        """
        for image in images[len(self._urls) :]:
            self._screens.append(Size(*image.size))
            size = self.image_size(self._screens[-1])
            self._urls.append(await in_daemon_thread(partial(_data_url, image, size)))
        family = self._config.family
        messages = family.messages(self._instruction, self._config.language, self._said, self._first)
        body = self._body(_as_openai(messages, self._urls[self._first :]), len(self._said))
        answer = await self._endpoint.reply(body)
        said, problem = _read_reply(answer, self._config.max_reply_tokens, self._endpoint.shown)
        said = _without_structure(said)
        self._used, prompt_tokens, reply_tokens = _read_usage(answer, said)
        self._growth.check(prompt_tokens, reply_tokens, self._screens, self._first)
        self._said.append(said)
        text = re.sub(_MARKS, "", said)
        self._positions.saw(text, self.image_size(self._screens[-1]))
        return Written(text, problem, self._first)

    def show(self, screen: Size) -> StopReason | None:
        """Append a screenshot if it and a whole reply still fit into the context, as far as that is known. If the row
        is full, begin another, with fewer screenshots if replies leave no room for all."""
        self._image_tokens.append(self._geometry.num_tokens(screen))
        newest = len(self._said)
        kept = self._config.screenshots_kept
        is_full = newest - self._first == self._config.row_screenshots
        if not is_full and self._fits(self._first):
            return None
        oldest = newest + 1 if kept is None else max(self._first, newest - kept) + 1
        for first in range(oldest, newest + 1):
            if self._fits(first):
                self._first = first
                return None
        return StopReason.TOKEN_LIMIT

    def _fits(self, first: int) -> bool:
        """Return whether the newest screenshot and a reply to it fit if `first` is the first shown screenshot. Of the
        others it subtracts only the images' own tokens, since more is not known."""
        if self._context is None or not self._used:
            return True
        gone = sum(self._image_tokens[self._first : first])
        needed = self._used - gone + self._image_tokens[-1] + TURN_TOKENS + self._config.max_reply_tokens
        return needed <= self._context


class _EndpointChat:
    """One episode's requests of a harness, passed on: the server renders the messages and reads calls of tools.

    What the policy wrote goes back as it wrote it, also where the harness was shown it without special tokens.
    """

    limits: TokenLimits | None = None

    def __init__(self, endpoint: Endpoint, body: Body, geometry: ImageGeometry, context: int | None):
        self._endpoint = endpoint
        self._body = body
        self._geometry = geometry
        self._context = context
        self._urls: dict[bytes, str] = {}
        self._said: dict[tuple[object, ...], str] = {}
        self._number = 0

    def image_size(self, screen: Size) -> Size:
        return self._geometry.image_size(screen)

    def check(self, request: ChatRequest) -> None:
        """Let it pass: the server counts the tokens."""

    def prepare(self, asked: Asked) -> Callable[[], Awaitable[Answer]]:
        """See `PolicyChat`."""
        number, self._number = self._number, self._number + 1
        return partial(self._ask, asked, number)

    async def _ask(self, asked: Asked, number: int) -> Answer:
        """Have the server reply.

        Raises:
            RequestError: the messages are longer than the model's context.
            EndpointError, ConfigError: as `_EndpointConversation.reply`.
        """
        body = {**self._body(await self._messages(asked), number), "max_tokens": asked.max_tokens}
        for name, values in (("tools", asked.request.tools), ("stop", asked.request.stops)):
            body |= {name: list(values)} if values else {}
        try:
            answer = await self._endpoint.reply(body)
        except _TooLong as error:
            raise RequestError(str(error), 400, TOO_LONG) from error
        return self._read(answer, asked)

    def _read(self, answer: Mapping[str, Any], asked: Asked) -> Answer:
        with_tools = bool(asked.request.tools)
        said, problem = _read_reply(answer, asked.max_tokens, self._endpoint.shown, with_tools)
        calls = _read_calls(answer, self._endpoint.shown) if with_tools else ()
        said = _without_structure(encodable(said))
        _, prompt_tokens, reply_tokens = _read_usage(answer, said)
        if self._context is not None and prompt_tokens + asked.max_tokens > self._context:
            message = f"the prompt has {prompt_tokens} tokens, and with a reply of {asked.max_tokens} it must fit into"
            raise RequestError(f"{message} the {self._context} of the model's context (--context)", 400, TOO_LONG)
        screens = [Size(*image.size) for image in asked.images]
        if screens:
            PromptGrowth(self._geometry).check(prompt_tokens, reply_tokens, screens, 0)
        shown = Message("assistant", (text_part(re.sub(_MARKS, "", said)),), calls=calls)
        self._said[shown.spoken] = said
        reason = "tool_calls" if calls else "length" if problem else "stop"
        return Answer(shown, reason, prompt_tokens, reply_tokens)

    async def _messages(self, asked: Asked) -> list[dict[str, Any]]:
        for id, image in zip(asked.image_ids, asked.images, strict=True):
            if id not in self._urls:
                size = self.image_size(Size(*image.size))
                self._urls[id] = await in_daemon_thread(partial(_data_url, image, size))
        return [self._as_sent(message) for message in asked.request.messages]

    def _as_sent(self, message: Message) -> dict[str, Any]:
        is_like_own = message.role == "assistant" and not message.images
        said = self._said.get(message.spoken) if is_like_own else None
        parts = message.content or (text_part(""),) if said is None else (text_part(said),)
        (sent,) = _as_openai([{"role": message.role, "content": parts}], [self._urls[id] for id in message.image_ids])
        if message.calls:
            sent["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
        return sent if message.answers is None else {**sent, "tool_call_id": message.answers}


class _TooLong(EndpointError):
    """A request that is longer than the model's context, as its server says."""


class _Again(Exception):
    """This request may succeed at the next attempt; the server asks us to wait `after_s` seconds."""

    def __init__(self, message: str, after_s: float = 0.0):
        super().__init__(message)
        self.after_s = after_s

    def explain(self, url: str, path: str, attempts: int) -> str:
        """Return the sentence for the user after the last attempt."""
        return f"{url} gave no usable answer to {path} in {attempts} attempts: {self}"


class _NoConnection(_Again):
    """Nothing listens at the address, or no machine has its name."""

    def explain(self, url: str, path: str, attempts: int) -> str:
        return (
            f"no server answers at {url} ({self}, {attempts} attempts); check the address, and that the server runs "
            "and has loaded its model"
        )


def _why_no_connection(error: Exception) -> str | None:
    """Return the system's reason why there was no connection; None if there was one, or if a proxy failed."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    if not isinstance(reason, ConnectTimeoutError):
        return None
    cause = reason.__cause__
    return str(getattr(cause, "strerror", None) or cause or "timed out")


def _read(response: requests.Response, deadline: float) -> bytes:
    """Read the body as it was sent, within the limits on bytes and time."""
    content = bytearray()
    while chunk := response.raw.read1(_CHUNK_BYTES):
        content += chunk
        if len(content) > MAX_RESPONSE_BYTES:
            raise _Again(f"more than {MAX_RESPONSE_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise _Again("an answer that does not end")
    return bytes(content)


def _read_reply(
    answer: Mapping[str, Any], max_tokens: int, shown: Callable[[str], str], with_tools: bool = False
) -> tuple[str, str | None]:
    """Return a reply's text, and what is wrong with it.

    Args:
        with_tools: whether tools were offered, so that calls may be apart from the text.

    Raises:
        EndpointError: the answer has no reply.
        ConfigError: the server put it elsewhere than into its text, or filtered it.
    """
    try:
        choice = answer["choices"][0]
        message, reason = choice["message"], str(choice.get("finish_reason")).lower()
        text, apart = _text_of(message)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EndpointError(f"the server does not answer as OpenAI's API: {shown(str(answer))}") from error
    is_silent = not text.strip() and not message.get("tool_calls")
    for name, remedy in (_FILTERS | ({} if with_tools else _CALLS) | (_REASONING if is_silent else {})).items():
        if name in apart or reason == name:
            said = shown(str(message))
            raise ConfigError(f"the server gives a reply as {name} instead of text; {remedy}; it answered {said}")
    if broken := choice.get("error") or answer.get("error") or (reason in ABORTED and reason):
        raise EndpointError(f"the server's engine broke off a reply: {shown(str(broken))}")
    tokens = max_tokens if reason in _CUT else _read_usage(answer, text)[2]
    if is_silent and not text and tokens > TURN_TOKENS:
        raise ConfigError(f"the server gives a reply of {tokens} tokens without their text; {_NO_REASONING_PARSER}")
    problem = None
    if reason in _CUT:
        problem = f"a reply must end within gui_agent.max_reply_tokens={max_tokens}, got no end"
    return text, problem


def _text_of(message: Mapping[str, Any]) -> tuple[str, set[str]]:
    """Return a message's text, and the names of what it holds beside the text: fields, and parts of other types.

    Raises:
        KeyError, TypeError: it is no message.
    """
    apart = {name for name, value in message.items() if value and str(value).strip()}
    known = {*_FILTERS, *_CALLS, *_REASONING}
    content = message.get("content") if apart & known else message["content"]
    # Without a content the model wrote only its end, or only what the server reports elsewhere.
    parts = [text_part(content)] if isinstance(content, str) else content or []
    texts = [part["text"] for part in parts if part["type"] not in known]
    return "".join(texts), apart | {part["type"] for part in parts}


def _read_calls(answer: Mapping[str, Any], shown: Callable[[str], str]) -> tuple[Call, ...]:
    """The calls of tools in an answer whose reply was read.

    Raises:
        EndpointError: they are none.
    """
    calls = answer["choices"][0]["message"].get("tool_calls")
    try:
        read = read_message({"role": "assistant", "tool_calls": calls}).calls
    except RequestError as error:
        raise EndpointError(f"the server must give calls of tools as OpenAI's API, got {shown(str(calls))}") from error
    return tuple(
        dataclasses.replace(call, name=encodable(call.name), arguments=encodable(call.arguments)) for call in read
    )


def _read_usage(answer: Mapping[str, Any], said: str) -> tuple[int, int, int]:
    """Return the tokens up to the reply's end and of the prompt, 0 if unknown, and the most that the reply can have."""
    usage = answer.get("usage")
    told = usage if isinstance(usage, Mapping) else {}
    counts = (told.get(name) for name in ("total_tokens", "prompt_tokens", "completion_tokens"))
    total, prompt, reply = (count if type(count) is int and 0 < count < _MANY_TOKENS else 0 for count in counts)
    # Half a character of the model's comes back as one with more tokens; no token has less than a byte.
    if not reply or "\ufffd" in said:
        reply = len(said.encode("utf-8", "replace"))
    return total, prompt, reply


def _without_structure(said: str) -> str:
    """Remove tokens from a reply that would look like more turns and images when we send it back."""
    said = re.sub(_STRUCTURE, "", said)
    # The text around a removed one may have become another.
    return re.sub(_STRUCTURE, _as_text, said)


def _as_text(token: re.Match[str]) -> str:
    return token[0].replace("<|", "< |")


def _as_openai(messages: Sequence[Mapping[str, Any]], urls: Sequence[str]) -> list[dict[str, Any]]:
    """Return our messages with images in their places; messages of text only go as text, which every server takes."""
    image = iter(urls)
    converted = []
    for message in messages:
        parts = message["content"]
        if len(parts) == 1 and parts[0]["type"] == "text":
            content: Any = parts[0]["text"]
        else:
            content = [
                {"type": "image_url", "image_url": {"url": next(image)}} if part["type"] == "image" else dict(part)
                for part in parts
            ]
        converted.append({"role": message["role"], "content": content})
    return converted


def _data_url(image: Image.Image, size: Size) -> str:
    """Return the picture as the model's processor would resize it, without loss."""
    from torchvision.transforms.v2 import functional

    pixels = functional.pil_to_tensor(image.decoded() if isinstance(image, LazyImage) else image)
    sides = [size.height, size.width]
    resized = functional.resize(pixels, sides, functional.InterpolationMode.BICUBIC, antialias=True)
    buffer = io.BytesIO()
    functional.to_pil_image(resized).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _names_model(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("id"), str)


def _seconds(value: str | None) -> float:
    try:
        return max(0.0, min(float(value or 0), LONGEST_REST_S))
    except ValueError:  # a date
        return 0.0


def read_api_key(variable: str) -> str | None:
    """Read the key from an environment variable, if it is set.

    Raises:
        ConfigError: the key cannot be part of a request.
    """
    key = os.environ.get(variable, "").strip()
    require(key.isascii() and key.isprintable(), f"the variable {variable}", "a key of ASCII characters", "others")
    return key or None


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """Call a blocking function in a daemon thread, so that this process can end before a long request does."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = function(), None
        except BaseException as raised:
            result, error = None, raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop is closed, so nobody waits
            return

    threading.Thread(target=run, daemon=True, name="arpo_verl-endpoint").start()
    return await future
