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

from arpo_verl.agent.harness.chat_completions import (
    ChatMessage,
    ChatRequest,
    following,
    image_bytes,
    read_request,
    write_answer,
)
from arpo_verl.agent.harness.policy_chat import TOO_LONG, Answer, EpisodeRequest, PolicyChat
from arpo_verl.agent.harness.transcript import TokenReply
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.episode import DecodeScreenshot, Turn, Watcher
from arpo_verl.errors import ConfigError, DesktopLostError, GenerationError, HarnessError, RequestError
from arpo_verl.types import Observation, StopReason

logger = logging.getLogger(__name__)

MOST_IMAGE_BYTES = 256 << 20
"""Most bytes of an episode's images: 15 turns of 8 new screenshots of 1920x1080 have some 200 MB."""
MOST_RECORD_BYTES = 24 << 20
"""Most bytes of requests in an episode's record: nobody can read a record above `untrusted.MOST_JSON_BYTES`."""
SIDE_REQUESTS = 4
"""Untrained requests for each turn of `gui_agent.max_steps`: they cost the engine as much as others."""

_FITTED: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""Event loops in which a prompt has fitted: one that does not is its own episode's fault, not the recipe's."""


class Waits:
    """Counts the seconds of waiting; waits at the same time count once."""

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
    """Answers a program's requests by the policy, and keeps what was written.

    Args:
        chat: how this episode's policy is asked.
        ended: the end of the episode: it is set where a limit is reached or the engine fails.
        url: of the endpoint, which answers as this does.
    """

    def __init__(
        self,
        chat: PolicyChat,
        config: GuiAgentConfig,
        decode: DecodeScreenshot,
        ended: asyncio.Future[StopReason],
        watcher: Watcher | None = None,
        url: str = "",
    ):
        self.url = url
        """The `base_url` of an OpenAI client."""
        self.token = secrets.token_urlsafe(32)
        """Its `api_key`. No other episode's endpoint or desktop takes it."""
        self.waits = Waits()
        self.replies: list[TokenReply] = []
        """Replies that may be trained: one of each turn, or none at all."""
        self.turns: list[Turn] = []
        self.images: dict[bytes, Image.Image] = {}
        """All images that were shown, by the hash of their data URL, in order."""
        self.files: dict[bytes, bytes] = {}
        self.running = 0
        """Requests over the network that wait for an answer."""
        self.log = b""
        """What a command printed."""
        self._chat = chat
        self._config = config
        self._decode = decode
        self._ended = ended
        self._watcher = watcher
        self._decoding = asyncio.Lock()
        self._ends: dict[bytes, tuple[int, int]] = {}
        """By a conversation's hash up to a reply: the reply's turn, and how many messages there are."""
        self._asked = {True: 0, False: 0}
        self._record_bytes = 0

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
        with self._ended_by_length(request):
            self._chat.check(request)
            image_ids = await self._take_images(request)
            self._check_open(request.is_trained)  # others may have come first
            asked = self._asked_with(request, image_ids)
            ask = self._chat.prepare(asked)
            _FITTED.add(asyncio.get_running_loop())
            self._count(request, asked.known)
            began = time.perf_counter()
            answer = await self._answer(ask)
        self._check_open(False)
        if request.is_trained:
            self._ends[following(asked.name, answer.said)] = len(self.turns), len(request.messages) + 1
            if answer.reply is not None:
                self.replies.append(answer.reply)
            self._take(self._turn(asked, answer, time.perf_counter() - began))
        return write_answer(request.model, answer.said, answer.reason, answer.prompt_tokens, answer.reply_tokens)

    def _asked_with(self, request: ChatRequest, image_ids: Sequence[bytes]) -> EpisodeRequest:
        prefixes, most = request.prefixes(), self._config.max_reply_tokens
        turn, known = self._goes_on_from(request, prefixes)
        return EpisodeRequest(
            request=request,
            name=prefixes[-1],
            max_tokens=min(request.max_tokens or most, most),
            image_ids=image_ids,
            images=[self.images[id] for id in image_ids],
            turn=turn,
            known=known,
            earlier=self.replies[turn] if turn is not None and self.replies else None,
            replies=self.replies,
        )

    def _goes_on_from(self, request: ChatRequest, prefixes: Sequence[bytes]) -> tuple[int | None, int]:
        """Return the turn that the messages go on from, and how many messages there are up to its reply."""
        if request.is_trained:
            for prefix in reversed(prefixes[:-1]):
                if prefix in self._ends:
                    return self._ends[prefix]
        return None, 0

    def _count(self, request: ChatRequest, known: int) -> None:
        """Count a request.

        Raises:
            RequestError: the episode may make no more of its kind, or of its size.
        """
        size = request.record_bytes(known) if request.is_trained else 0
        if self._record_bytes + size > MOST_RECORD_BYTES:
            most_mb = MOST_RECORD_BYTES >> 20
            raise RequestError(f"an episode's new messages and tools may have {most_mb} MB of text", 413, "too_large")
        self._record_bytes += size
        self._asked[request.is_trained] += 1
        if self._asked[False] > (most := SIDE_REQUESTS * self._config.max_turns):
            raise RequestError(f"an episode may have {most} untrained replies", 429, "rate_limit")

    def _check_open(self, is_trained: bool) -> None:
        if not self._ended.done() and is_trained and self._asked[True] >= self._config.max_turns:
            self._ended.set_result(StopReason.STEP_LIMIT)
        if self._ended.done():
            turns = self._config.max_turns
            raise RequestError(
                f"the episode is over; it may have {turns} turns (gui_agent.max_steps)", 409, "episode_over"
            )

    async def _answer(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            with self.waits.counted():
                return await ask()
        except RequestError:
            raise
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
            raise GenerationError(f"the rollout engine gave no reply: {error}") from error

    @contextmanager
    def _ended_by_length(self, request: ChatRequest) -> Iterator[None]:
        """End the episode at a trained request that does not fit; at the very first one, the run."""
        try:
            yield
        except RequestError as error:
            if error.code == TOO_LONG and request.is_trained and not self._ended.done():
                if self.turns:
                    self._ended.set_result(StopReason.TOKEN_LIMIT)
                elif asyncio.get_running_loop() in _FITTED:
                    self._ended.set_exception(HarnessError(str(error)))
                else:
                    self._ended.set_exception(ConfigError(f"{error}; raise them, or shorten the harness's prompt"))
            raise

    async def _take_images(self, request: ChatRequest) -> list[bytes]:
        """Decode each image that is new, one at a time; return the names of all, in order."""
        ids = [id for message in request.messages for id in message.image_ids]
        most = self._config.row_screenshots
        if len(ids) > most:
            raise RequestError(f"a request may show {most} images (gui_agent.max_screenshots), got {len(ids)}")
        urls = [url for message in request.messages for url in message.images]
        async with self._decoding:
            for id, url in zip(ids, urls, strict=True):
                if id not in self.images:
                    image, file = await self._decoded(url)
                    self._check_open(request.is_trained)
                    self.images[id], self.files[id] = image, file
                    if self._watcher is not None:
                        self._watcher.saw(file)
        return ids

    async def _decoded(self, url: str) -> tuple[Image.Image, bytes]:
        file = await asyncio.to_thread(image_bytes, url)
        if len(file) + sum(map(len, self.files.values())) > MOST_IMAGE_BYTES:
            raise RequestError(f"an episode may show {MOST_IMAGE_BYTES >> 20} MB of images", 413, "too_large")
        try:
            return await self._decode(Observation(file)), file
        except DesktopLostError as error:
            raise RequestError(f"an image cannot be shown to the policy: {error.__cause__ or error}") from error

    def _turn(self, asked: EpisodeRequest, answer: Answer, seconds: float) -> Turn:
        shown = list(self.images)
        newest = shown.index(asked.image_ids[-1]) if asked.image_ids else max(0, len(shown) - 1)
        return Turn(
            _written(answer.said),
            generate_s=seconds,
            screenshot=newest,
            first_screenshot=shown.index(asked.image_ids[0]) if asked.image_ids else newest,
            request=asked.request.record(asked.known, asked.turn, shown),
        )

    def _take(self, turn: Turn) -> None:
        self.turns.append(turn)
        if self._watcher is not None:
            self._watcher.replied(tuple(self.turns))


def _written(said: ChatMessage) -> str:
    """Return a reply with its calls, for people."""
    functions = [call.function for call in said.tool_calls or ()]
    return "\n".join([said.text, *(f"{one.name}({one.arguments})" for one in functions)]).strip("\n")


@functools.cache
def _report_replaced(names: tuple[str, ...]) -> None:
    """Warn, once a process for the same parameters."""
    if names:
        logger.warning(
            "a harness sets %s; replies are sampled with the run's own values: training with other ones would be "
            "wrong, and no evaluation would compare",
            ", ".join(names),
        )
