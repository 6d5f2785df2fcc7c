"""A policy behind an OpenAI-compatible server: vLLM, SGLang, or a hosted one. We distrust what it sends.

Screenshots go as image messages. We resize them as training does, by the same function, so a server of the same model
need not resize them. Each request has the replies and screenshots that `gui_agent.context` shows, as training has them
in a row.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import requests.utils
from PIL import Image

from arpo_verl.agent.harness.chat_completions import ChatMessage, ChatRequest, png_url, write_content
from arpo_verl.agent.harness.policy_chat import TOO_LONG, Answer, EpisodeRequest, PolicyChat
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Conversation, TokenLimits, Written
from arpo_verl.agent.rollout.sequence import EpisodeSequence
from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.errors import ConfigError, EndpointError, RequestError
from arpo_verl.lib.config import require
from arpo_verl.lib.images import LazyImage
from arpo_verl.records.json_files import parse_json
from arpo_verl.tools.evaluation.answers import (
    NO_FILTER,
    TURN_TOKENS,
    CoordinateRange,
    PromptGrowth,
    ServerReply,
    read_answer,
)
from arpo_verl.tools.evaluation.policy import Sampling, reply_seed
from arpo_verl.tools.evaluation.results import Trial
from arpo_verl.types import Size, StopReason, Task

logger = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 4 << 20
MAX_MESSAGE = 300
"""Most characters of a server's error that we show."""
TRIED_AGAIN = frozenset((408, 409, 425, 429, *range(500, 600)))
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
_CONTEXT_LENGTH = re.compile(rb"context[_ ]length", re.IGNORECASE)
"""Part of the refusal of a request that is too long: OpenAI's code, and the words of vLLM and SGLang."""
_FILTERED = re.compile(rb"content_filter|data_inspection_failed|content_policy_violation", re.IGNORECASE)
"""Part of the refusal of a request that a filter stopped: the codes of Azure, Alibaba and LiteLLM."""
# Special tokens of Qwen's tokenizers: those for turns and images, and those that mark a place in a text.
_STRUCTURE = r"<\|(?:im_start|im_end|endoftext|vision_start|vision_end|vision_pad|image_pad|video_pad)\|>"
_MARKS = r"<\|(?:object_ref|box|quad)_(?:start|end)\|>"


class Endpoint:
    """Client of a server's two addresses that we need.

    We do not use OpenAI's own client: it reads a body of any size, unpacks it, and checks none of its fields.

    Args:
        url: URL of its API, `http://HOST:PORT/v1`; without a path it gets `/v1`.
        api_key: sent as a bearer token; it never appears in a message, record or setting.
        timeout_s: time-out of a request up to its last byte: a busy server lets it wait before it writes a word.
        attempts: attempts in all, if the server is overloaded, broken or gone.
        rest_s: pause before the second attempt, doubled before each further one.

    Raises:
        ConfigError: this is no such URL, or it contains a key, which would be recorded.
    """

    def __init__(
        self, url: str, api_key: str | None = None, timeout_s: float = 300.0, attempts: int = 6, rest_s: float = 2.0
    ):
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
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._rest_s = rest_s
        # The environment's proxies cannot reach this machine's loopback.
        is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")
        proxies = {} if is_local else requests.utils.get_environ_proxies(self.url)
        proxy = requests.utils.select_proxy(self.url, proxies)
        self._proxy = f"http://{proxy}" if proxy and "://" not in proxy else proxy
        # Some builds of Python find no certificates of the system.
        self._tls = ssl.create_default_context()
        self._tls.load_verify_locations(requests.utils.DEFAULT_CA_BUNDLE_PATH)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the server's answer to a request.

        Args:
            path: `models`, or `chat/completions` with a body.

        Raises:
            EndpointError: no usable answer came, after all attempts.
            RequestError: the server says that a request is longer than the model's context.
            ConfigError: the server refuses us.
        """
        for attempt in range(self._attempts):
            try:
                return await self._request(path, body)
            except _Again as error:
                again = error
            if attempt == 0 and isinstance(again.__cause__, aiohttp.ClientConnectorError):
                logger.warning("no server answers at %s yet (%s); we try again", self.url, again)
            if attempt + 1 < self._attempts:
                await asyncio.sleep(min(max(self._rest_s * 2**attempt, again.after_s), LONGEST_REST_S))
        raise EndpointError(
            f"{self.url} gave no usable answer to {path} in {self._attempts} attempts: {again}; check the address, and "
            "that the server runs and has loaded its model"
        ) from again

    async def _request(self, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Send one request. It follows no redirection, which would pass on the key, and unpacks nothing."""
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(self._timeout_s), auto_decompress=False) as session,
                session.request(
                    "GET" if body is None else "POST",
                    f"{self.url}/{path}",
                    data=None if body is None else io.BytesIO(json.dumps(body).encode()),
                    headers=headers,
                    proxy=self._proxy,
                    ssl=self._tls,
                    allow_redirects=False,
                ) as response,
            ):
                content = await _read(response)
        except TimeoutError:
            raise _Again(f"no whole answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise _Again(self.shown(f"{type(error).__name__}: {why}")) from error
        self._check_status(response, content)
        try:
            answer = parse_json(content)
        except ValueError:
            answer = None
        if not isinstance(answer, Mapping):
            raise _Again(f"no JSON object but {self.shown(repr(content))}")
        return answer

    def _check_status(self, response: aiohttp.ClientResponse, content: bytes) -> None:
        status = response.status
        if status == 200:
            return
        told = f"status {status}: {self.shown(content.decode('utf-8', 'replace'))}"
        if status in TRIED_AGAIN:
            raise _Again(told, _seconds(response.headers.get("Retry-After")))
        if status in REFUSALS or 300 <= status < 400:
            remedy = "see --endpoint, --model-name and --api-key-env"
            raise ConfigError(f"{self.url} refuses our requests, {told}; {remedy}")
        if _FILTERED.search(content):
            raise ConfigError(f"{self.url} filters a request, {told}; {NO_FILTER}")
        refused = f"{self.url} refused a request, {told}; is it longer than the model's context (--context)?"
        if status == 400 and _CONTEXT_LENGTH.search(content):
            raise RequestError(refused, status, TOO_LONG)
        raise EndpointError(refused)

    def shown(self, text: str) -> str:
        """Return a text for a message, without the key, a proxy's password and control characters."""
        text = re.sub(r"//[^\s/]*@", "//***@", text.replace(self._key, "***") if self._key else text)[:MAX_MESSAGE]
        return "".join(c if c.isprintable() else " " for c in text)


@dataclass(frozen=True)
class ServedModel:
    """A model as its server lists it."""

    name: str
    context: int | None = None
    """Most tokens of a sequence; None if the server does not say."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a request that OpenAI's API lacks: `AS_IN_TRAINING` if the server knows them."""


@dataclass(frozen=True)
class EndpointPolicy:
    """A server's model, as a policy to evaluate."""

    endpoint: Endpoint
    model: ServedModel
    geometry: ImageGeometry
    """How the model's processor resizes screenshots; its coordinates are in the resized one."""
    context: int | None = None
    """Most tokens of a sequence; None takes the server's number."""
    identity: Mapping[str, Any] | None = None
    """What identifies the model, if the server's address and name do not."""
    _positions: dict[str, CoordinateRange] = field(default_factory=dict, init=False)

    @property
    def most_tokens(self) -> int | None:
        return self.context or self.model.context

    @property
    def facts(self) -> dict[str, Any]:
        identity = self.identity or {"endpoint": self.endpoint.url, "model": self.model.name}
        return {**identity, "context": self.most_tokens, **self.model.options, **vars(self.geometry)}

    def conversation(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> Conversation:
        """See `Policy`."""
        positions = self._positions.setdefault(config.model_family, CoordinateRange(config.model_family))
        return _EndpointConversation(_Replies(self, config, sampling, trial), positions)

    def chat(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> PolicyChat:
        """See `Policy`."""
        return _EndpointChat(_Replies(self, config, sampling, trial))


async def find_model(endpoint: Endpoint, name: str | None) -> ServedModel:
    """Return the model with this name, or the only one, with its context if the server gives it (vLLM, SGLang).

    Raises:
        ConfigError: the server has several models, or none with this name.
        EndpointError: it does not answer.
    """
    listed = (await endpoint.ask("models")).get("data")
    cards = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    models = {card["id"]: card for card in cards if isinstance(card.get("id"), str)}
    if name is None and len(models) == 1:
        name = next(iter(models))
    known = f"one that {endpoint.url} has: {endpoint.shown(', '.join(sorted(models)[:20])) or 'it names none'}"
    if name is None or (models and name not in models):
        raise ConfigError(f"--model-name must be {known}; {'add it' if name is None else f'got {name}'}")
    card = models.get(name, {})
    context = card.get("max_model_len")
    options = AS_IN_TRAINING if card.get("owned_by") in TAKE_THEM else {}
    return ServedModel(name, context if type(context) is int and context > 0 else None, options)


@dataclass(frozen=True)
class _Replies:
    """Asks a server for an episode's replies."""

    policy: EndpointPolicy
    config: GuiAgentConfig
    sampling: Sampling
    trial: Trial

    async def ask(self, messages: Sequence[Mapping[str, Any]], number: int, **more: Any) -> ServerReply:
        """Ask for a reply.

        Args:
            number: the reply's number, from 0.
            more: further fields of the request.

        Raises:
            EndpointError: the server gives no usable reply.
            ConfigError: it refuses us, or puts the reply elsewhere than into its text.
        """
        model, endpoint = self.policy.model, self.policy.endpoint
        body = {
            "model": model.name,
            "messages": messages,
            "max_tokens": self.config.max_reply_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "seed": reply_seed(self.sampling, self.trial, number),
            **model.options,
            **more,
        }
        answer = await endpoint.ask("chat/completions", body)
        reply = read_answer(answer, body["max_tokens"], endpoint.shown, "tools" in body)
        return replace(reply, text=_without_structure(reply.text))

    async def data_url(self, image: Image.Image) -> str:
        """Return a screenshot as the model's processor would resize it."""
        return await asyncio.to_thread(_data_url, image, self.policy.geometry.image_size(Size(*image.size)))


class _EndpointConversation:
    """One episode of our loop: its messages so far, with each screenshot encoded once."""

    rows: tuple[EpisodeSequence, ...] = ()

    def __init__(self, replies: _Replies, positions: CoordinateRange):
        self._replies = replies
        self._positions = positions
        self._config = replies.config
        self._geometry = replies.policy.geometry
        self._growth = PromptGrowth(replies.policy.geometry)
        self._screens: list[Size] = []
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
            EndpointError, ConfigError: as `_Replies.ask`, and if the server resizes our screenshots.
        """
        for image in images[len(self._urls) :]:
            self._screens.append(Size(*image.size))
            self._urls.append(await self._replies.data_url(image))
        messages = self._config.family.messages(self._instruction, self._config.language, self._said, self._first)
        urls = iter(self._urls[self._first :])
        sent = [{**message, "content": write_content(message["content"], urls)} for message in messages]
        reply = await self._replies.ask(sent, len(self._said))
        self._used = reply.total_tokens
        self._growth.check(reply.prompt_tokens, reply.reply_tokens, self._screens, self._first)
        self._said.append(reply.text)
        problem = f"a reply must end within gui_agent.max_reply_tokens={self._config.max_reply_tokens}, got no end"
        text = re.sub(_MARKS, "", reply.text)
        self._positions.see(text, self.image_size(self._screens[-1]))
        return Written(text, problem if reply.is_cut else None, self._first)

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
        context = self._replies.policy.most_tokens
        if context is None or not self._used:
            return True
        gone = sum(self._image_tokens[self._first : first])
        needed = self._used - gone + self._image_tokens[-1] + TURN_TOKENS + self._config.max_reply_tokens
        return needed <= context


class _EndpointChat:
    """One episode's requests of a harness, passed on: the server renders the messages and reads calls of tools.

    What the policy wrote goes back as it wrote it, also where the harness was shown it without special tokens.
    """

    limits: TokenLimits | None = None

    def __init__(self, replies: _Replies):
        self._replies = replies
        self._geometry = replies.policy.geometry
        self._urls: dict[bytes, str] = {}
        self._said: dict[tuple[object, ...], str] = {}
        self._number = 0

    def image_size(self, screen: Size) -> Size:
        return self._geometry.image_size(screen)

    def check(self, request: ChatRequest) -> None:
        """Let it pass: the server counts the tokens."""

    def prepare(self, asked: EpisodeRequest) -> Callable[[], Awaitable[Answer]]:
        """See `PolicyChat`."""
        number, self._number = self._number, self._number + 1
        return partial(self._ask, asked, number)

    async def _ask(self, asked: EpisodeRequest, number: int) -> Answer:
        """Have the server reply.

        Raises:
            RequestError: the messages are longer than the model's context.
            EndpointError, ConfigError: as `_EndpointConversation.reply`.
        """
        request = asked.request
        more = {"tools": list(request.tools), "stop": list(request.stops)}
        more = {name: values for name, values in more.items() if values}
        reply = await self._replies.ask(await self._messages(asked), number, max_tokens=asked.max_tokens, **more)
        prompt_tokens, context = reply.prompt_tokens, self._replies.policy.most_tokens
        if context is not None and prompt_tokens + asked.max_tokens > context:
            message = f"the prompt has {prompt_tokens} tokens, and with a reply of {asked.max_tokens} it must fit into"
            raise RequestError(f"{message} the {context} of the model's context (--context)", 400, TOO_LONG)
        screens = [Size(*image.size) for image in asked.images]
        if screens:
            PromptGrowth(self._geometry).check(prompt_tokens, reply.reply_tokens, screens, 0)
        shown = ChatMessage("assistant", re.sub(_MARKS, "", reply.text), reply.calls or None)
        self._said[shown.spoken] = reply.text
        reason = "tool_calls" if reply.calls else "length" if reply.is_cut else "stop"
        return Answer(shown, reason, prompt_tokens, reply.reply_tokens)

    async def _messages(self, asked: EpisodeRequest) -> list[dict[str, Any]]:
        for id, image in zip(asked.image_ids, asked.images, strict=True):
            if id not in self._urls:
                self._urls[id] = await self._replies.data_url(image)
        return [self._as_sent(message) for message in asked.request.messages]

    def _as_sent(self, message: ChatMessage) -> dict[str, Any]:
        is_like_own = message.role == "assistant" and not message.images
        if is_like_own and (said := self._said.get(message.spoken)) is not None:
            message = msgspec.structs.replace(message, content=said)
        return message.sent([self._urls[id] for id in message.image_ids])


class _Again(Exception):
    """A request may succeed at the next attempt; the server asks us to wait `after_s` seconds."""

    def __init__(self, message: str, after_s: float = 0.0):
        super().__init__(message)
        self.after_s = after_s


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read the body as it was sent, within the limit on bytes."""
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > MAX_RESPONSE_BYTES:
            raise _Again(f"more than {MAX_RESPONSE_BYTES >> 20} MiB")
    return bytes(content)


def _without_structure(said: str) -> str:
    """Remove tokens from a reply that would look like more turns and images when we send it back."""
    said = re.sub(_STRUCTURE, "", said)
    # The text around a removed one may have become another.
    return re.sub(_STRUCTURE, _as_text, said)


def _as_text(token: re.Match[str]) -> str:
    return token[0].replace("<|", "< |")


def _data_url(image: Image.Image, size: Size) -> str:
    """Return the picture as the model's processor would resize it, without loss."""
    from torchvision.transforms.v2 import functional

    pixels = functional.pil_to_tensor(image.decoded() if isinstance(image, LazyImage) else image)
    sides = [size.height, size.width]
    resized = functional.resize(pixels, sides, functional.InterpolationMode.BICUBIC, antialias=True)
    buffer = io.BytesIO()
    functional.to_pil_image(resized).save(buffer, "PNG", compress_level=1)
    return png_url(buffer.getvalue())


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
