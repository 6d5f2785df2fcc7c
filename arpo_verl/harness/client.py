"""One episode's policy, asked as an OpenAI server is: by a function in the process, or over the endpoint."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from PIL import Image

from arpo_verl.errors import ConfigError, DesktopLostError, GenerationError, HarnessError, RequestError
from arpo_verl.harness.requests import Call, ChatRequest, Message, following, image_bytes, read_request
from arpo_verl.harness.transcript import Reply, fits
from arpo_verl.models.messages import text_part
from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import Generate, TokenLimits
from arpo_verl.rollout.episode import DecodeScreenshot, Turn, Watcher
from arpo_verl.rollout.sequence import Generated
from arpo_verl.types import Observation, Size, StopReason

logger = logging.getLogger(__name__)

ParseCalls = Callable[[list[int], Sequence[Mapping[str, Any]]], Awaitable[tuple[str, list[Call]]]]
"""(a reply's tokens without its end, tools) -> its text beside the calls of tools, and these."""

TOKEN_BYTES = 32
"""Of text, for each token that fits: no more than a few tokens of a vocabulary are so long."""
MOST_IMAGE_BYTES = 256 << 20
"""Of an episode's images: 15 turns of 8 new screenshots of 1920x1080 have some 200 MB."""
SIDE_REQUESTS = 4
"""Untrained requests for each turn of `gui_agent.max_steps`: they cost the engine as much as others."""

_FITTED: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""Where a prompt has fitted: one that does not is its own episode's fault, not the recipe's."""


class Waits:
    """Seconds in which something was waited for; what is waited for at once counts once."""

    def __init__(self) -> None:
        self._waiting = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        return self._seconds + (time.perf_counter() - self._since if self._waiting else 0.0)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the block."""
        if not self._waiting:
            self._since = time.perf_counter()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._seconds += time.perf_counter() - self._since


class HarnessClient:
    """Answers a program's requests by the run's own engine, and keeps what was sampled.

    Args:
        ended: the end of the episode: it is set where a limit is reached or the engine fails.
        url: of the endpoint, which answers as this does.
    """

    def __init__(
        self,
        generate: Generate,
        chat: ChatTokenizer,
        config: GuiAgentConfig,
        limits: TokenLimits,
        decode: DecodeScreenshot,
        parse_calls: ParseCalls,
        ended: asyncio.Future[StopReason],
        watcher: Watcher | None = None,
        url: str = "",
    ):
        self.url = url
        """For a client of OpenAI's, as `base_url`."""
        self.token = secrets.token_urlsafe(32)
        """Its `api_key`. No other episode's endpoint or desktop takes it."""
        self.waits = Waits()
        self.replies: list[Reply] = []
        self.turns: list[Turn] = []
        self.images: dict[bytes, Image.Image] = {}
        """All that were shown, by the hash of their data URL, in order."""
        self.files: dict[bytes, bytes] = {}
        self.log = b""
        """What a command printed."""
        self._generate = generate
        self._chat = chat
        self._config = config
        self._limits = limits
        self._decode = decode
        self._parse_calls = parse_calls
        self._ended = ended
        self._watcher = watcher
        self._decoding: dict[bytes, asyncio.Task[tuple[Image.Image, bytes]]] = {}
        self._ends: dict[bytes, tuple[Reply, int]] = {}
        self._said: list[tuple[tuple[object, ...], Sequence[int]]] = []
        self._asked = {True: 0, False: 0}
        self._image_bytes = 0

    async def complete(self, request: ChatRequest | Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request for a chat completion.

        Args:
            request: as OpenAI's API takes it, read or not. Images are data URLs.

        Returns:
            OpenAI's answer, with one choice.

        Raises:
            RequestError: it cannot be answered, or the episode is over.
            GenerationError: the engine failed; the episode ends.
        """
        if not isinstance(request, ChatRequest):
            request = await asyncio.to_thread(read_request, request)
        _report_replaced(request.replaced)
        self._check_open(request.is_trained)
        self._check_text(request)
        images = await self._take_images(request)
        prompt_ids, earlier, known = self._prompt(request, images)
        max_tokens = min(request.max_tokens or self._config.max_reply_tokens, self._config.max_reply_tokens)
        self._admit(request, len(prompt_ids))
        began = time.perf_counter()
        generated = await self._sample(prompt_ids, [self.images[id] for id in images], max_tokens)
        said, generated, reason = await self._read(generated, request, max_tokens)
        self._check_open(False)
        if request.is_trained:
            prefix = request.prefixes()[-1]
            reply = Reply(prefix, prompt_ids, tuple(images), generated, earlier)
            self.replies.append(reply)
            self._ends[following(prefix, said)] = reply, len(request.messages) + 1
            self._said.append((said.spoken, generated.token_ids))
            shown = list(self.images).index(images[-1]) if images else max(0, len(self.images) - 1)
            self._take(
                Turn(
                    _written(said),
                    generate_s=time.perf_counter() - began,
                    screenshot=shown,
                    first_screenshot=list(self.images).index(images[0]) if images else shown,
                    request=request.record(known),
                )
            )
        return _answer(request, said, reason, len(prompt_ids), len(generated.token_ids))

    def _admit(self, request: ChatRequest, prompt: int) -> None:
        """Refuse a request beyond the episode's limits of turns and tokens, and count it.

        Raises:
            RequestError: says which.
        """
        self._check_open(request.is_trained)
        self._asked[request.is_trained] += 1
        if self._asked[False] > (most := SIDE_REQUESTS * self._config.max_turns):
            raise RequestError(f"an episode may have {most} untrained replies", 429, "rate_limit")
        self._check_room(request, prompt)

    def _check_open(self, is_trained: bool) -> None:
        if not self._ended.done() and is_trained and self._asked[True] >= self._config.max_turns:
            self._ended.set_result(StopReason.STEP_LIMIT)
        if self._ended.done():
            turns = self._config.max_turns
            raise RequestError(
                f"the episode is over; it may have {turns} turns (gui_agent.max_steps)", 409, "episode_over"
            )

    async def _take_images(self, request: ChatRequest) -> list[bytes]:
        """Have each image decoded that is new; returns the names of all, in order."""
        ids = [id for message in request.messages for id in message.image_ids]
        most = self._config.row_screenshots
        if len(ids) > most:
            raise RequestError(f"a request may show {most} images (gui_agent.max_screenshots), got {len(ids)}")
        urls = [url for message in request.messages for url in message.images]
        for id, url in dict(zip(ids, urls, strict=True)).items():
            if id not in self._decoding:
                self._decoding[id] = asyncio.create_task(self._decoded(url))
        for id in dict.fromkeys(ids):
            image, file = await asyncio.shield(self._decoding[id])  # which other requests may wait for too
            if id not in self.images:
                self.images[id], self.files[id] = image, file
                if self._watcher is not None:
                    self._watcher.saw(file)
        return ids

    async def _decoded(self, url: str) -> tuple[Image.Image, bytes]:
        file = await asyncio.to_thread(image_bytes, url)
        self._image_bytes += len(file)
        if self._image_bytes > MOST_IMAGE_BYTES:
            raise RequestError(f"an episode may show {MOST_IMAGE_BYTES >> 20} MB of images", 413, "too_large")
        try:
            return await self._decode(Observation(file)), file
        except DesktopLostError as error:
            raise RequestError(f"an image cannot be shown to the policy: {error.__cause__ or error}") from error

    def _prompt(self, request: ChatRequest, images: Sequence[bytes]) -> tuple[list[int], Reply | None, int]:
        """The tokens up to the reply, the reply that the messages go on from, and how many messages up to there."""
        earlier, known = None, 0
        for prefix in reversed(request.prefixes()[:-1]) if request.is_trained else ():
            if prefix in self._ends:
                earlier, known = self._ends[prefix]
                break
        screens = iter([Size(*self.images[id].size) for id in images][len(earlier.images) if earlier else 0 :])
        try:
            ids = self._tokens(earlier.token_ids if earlier else [], request, known, screens)
        except Exception as error:  # a template, or a builder of veRL's, may raise what it likes
            raise RequestError(f"the policy's chat template cannot render the messages: {error!s:.500}") from error
        return ids, earlier, known

    def _tokens(self, ids: list[int], request: ChatRequest, known: int, screens: Iterator[Size]) -> list[int]:
        """Append messages to tokens. The policy's own earlier replies are the tokens that it wrote."""
        own = self._own_replies(request.messages[known:])
        between: list[Message] = []
        for message, reply in [*zip(request.messages[known:], own, strict=True), (None, None)]:
            if message is not None and reply is None:
                between.append(message)
                continue
            sizes = [next(screens) for said in between for _ in said.images]
            shown = [said.shown() for said in between]
            if not ids:
                ids = self._chat.conversation(shown, sizes, request.tools)
            elif shown:
                ids = ids + self._chat.following(ids[-1], shown, sizes, request.tools)
            else:
                ids = ids + self._chat.next_reply(ids[-1])
            ids += reply or ()
            between = []
        return ids

    def _own_replies(self, messages: Sequence[Message]) -> list[Sequence[int] | None]:
        """Of each message, the tokens of the reply that it repeats. The newest message is matched with the newest
        reply: two may read alike and be written in other tokens."""
        found: list[Sequence[int] | None] = []
        newest = len(self._said)
        for message in reversed(messages):
            # The policy shows no image: a turn with one is somebody else's, also where its words are the policy's.
            is_like_own = message.role == "assistant" and not message.images
            numbers = range(newest - 1, -1, -1) if is_like_own else ()
            number = next((n for n in numbers if self._said[n][0] == message.spoken), None)
            found.append(None if number is None else self._said[number][1])
            newest = newest if number is None else number
        return found[::-1]

    def _check_text(self, request: ChatRequest) -> None:
        """Before it is tokenized, which takes a second for each megabyte in which no other episode goes on."""
        most = TOKEN_BYTES * self._limits.most
        if request.num_bytes > most:
            raise self._too_long(request, f"the request has {request.num_bytes} bytes of text, more than {most}")

    def _check_room(self, request: ChatRequest, prompt: int) -> None:
        """Whole replies alone: neither a prompt nor a reply is cut short by a limit."""
        if not fits(self._limits, prompt, self._config.max_reply_tokens):
            raise self._too_long(request, f"the prompt has {prompt} tokens")
        _FITTED.add(asyncio.get_running_loop())

    def _too_long(self, request: ChatRequest, what: str) -> RequestError:
        """The error for a request that does not fit, which ends the episode; at the very first one, the run."""
        message = (
            f"{what}, and with a reply of gui_agent.max_reply_tokens={self._config.max_reply_tokens} it must fit into "
            f"data.max_prompt_length + data.max_response_length = {self._limits.prompt + self._limits.response} "
            f"tokens and rollout.max_model_len={self._limits.total}"
        )
        if request.is_trained and not self._ended.done():
            if self.replies:
                self._ended.set_result(StopReason.TOKEN_LIMIT)
            elif asyncio.get_running_loop() in _FITTED:
                self._ended.set_exception(HarnessError(message))
            else:
                self._ended.set_exception(ConfigError(f"{message}; raise them, or shorten the harness's prompt"))
        return RequestError(message, 400, "context_length_exceeded")

    async def _sample(self, prompt_ids: list[int], images: list[Image.Image], max_tokens: int) -> Generated:
        try:
            with self.waits.counted():
                generated = await self._generate(prompt_ids, images, max_tokens)
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
            raise GenerationError(f"the rollout engine gave no reply: {error}") from error
        log_probs = generated.log_probs
        return Generated(generated.token_ids[:max_tokens], None if log_probs is None else log_probs[:max_tokens])

    async def _read(
        self, generated: Generated, request: ChatRequest, max_tokens: int
    ) -> tuple[Message, Generated, str]:
        """A reply as the client gets it, what of it was asked for, and why it ends."""
        ids = generated.token_ids
        reason = "length" if len(ids) == max_tokens and not self._chat.ends_turn(ids[-1]) else "stop"
        text = self._chat.text(ids)
        stop = min((text.find(stop) for stop in request.stops if stop in text), default=None)
        if stop is not None:
            reached = next(stop + len(one) for one in request.stops if text.startswith(one, stop))
            kept = _tokens_up_to(ids, reached, self._chat.text)
            log_probs = None if generated.log_probs is None else generated.log_probs[:kept]
            generated, text, reason = Generated(ids[:kept], log_probs), text[:stop], "stop"
        calls: list[Call] = []
        if request.tools and stop is None:
            body = list(ids[:-1] if self._chat.ends_turn(ids[-1]) else ids)
            try:
                text, calls = await self._parse_calls(body, request.tools)
            except Exception:  # of veRL's parsers, about what the policy wrote: it is a reply all the same
                logger.warning("a reply's calls of tools cannot be read; it is handed on as text", exc_info=True)
            reason = "tool_calls" if calls else reason
        return Message("assistant", (text_part(text),), calls=tuple(calls)), generated, reason

    def _take(self, turn: Turn) -> None:
        self.turns.append(turn)
        if self._watcher is not None:
            self._watcher.replied(tuple(self.turns))


def _tokens_up_to(token_ids: Sequence[int], length: int, text: Callable[[Sequence[int]], str]) -> int:
    """How many tokens there are up to the one in which the text gets so long."""
    low, high = 1, len(token_ids)
    while low < high:
        middle = (low + high) // 2
        if len(text(token_ids[:middle])) >= length:
            high = middle
        else:
            low = middle + 1
    return low


def _written(said: Message) -> str:
    """For people: a reply with its calls."""
    return "\n".join([said.text, *(f"{call.name}({call.arguments})" for call in said.calls)]).strip("\n")


def _answer(request: ChatRequest, said: Message, reason: str, prompt: int, reply: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.calls:
        functions = [{"name": call.name, "arguments": call.arguments} for call in said.calls]
        message["tool_calls"] = [
            {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": function} for function in functions
        ]
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply},
    }


@functools.cache
def _report_replaced(names: tuple[str, ...]) -> None:
    """Once a process for the same parameters."""
    if names:
        logger.warning(
            "a harness sets %s; replies are sampled with the recipe's values, since training with other ones would "
            "be wrong",
            ", ".join(names),
        )
