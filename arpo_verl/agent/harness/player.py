"""One episode that a program plays: set-up, the program until it or a limit ends it, the verdict."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from PIL import Image

from arpo_verl.agent.harness.client import HarnessClient
from arpo_verl.agent.harness.loading import Program
from arpo_verl.agent.harness.played_desktop import PlayedDesktop
from arpo_verl.agent.harness.policy_chat import PolicyChat
from arpo_verl.agent.harness.server import shared_server
from arpo_verl.agent.harness.token_chat import ParseCalls, TokenChat
from arpo_verl.agent.harness.transcript import TokenReply, chains, lay_out, sequences, trained
from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Generate, TokenLimits
from arpo_verl.agent.rollout.episode import (
    DecodeScreenshot,
    Episode,
    LeasedDesktop,
    Player,
    Watcher,
    decode_in_thread,
    evaluated,
)
from arpo_verl.errors import ActionError, ConfigError, HarnessError, MissingDependencyError
from arpo_verl.lib.images import LazyImage, content_id
from arpo_verl.types import Observation, Size, StopReason, Task

logger = logging.getLogger(__name__)

T = TypeVar("T")
CANCEL_TIMEOUT_S = 10.0
"""A program that does not end in this time after it was cancelled is left behind."""


async def decode_lazily(observation: Observation) -> Image.Image:
    """Decode a picture to check that it is whole, and drop its pixels: a program may show more than memory holds."""
    image = await decode_in_thread(observation)
    return LazyImage(Size(*image.size), content_id(observation.screenshot), lambda: observation.screenshot)


@dataclass(frozen=True)
class HarnessEpisodes:
    """Plays episodes as `rollout.episode.play_episode` does, by a program in the place of our loop."""

    program: Program
    parse_calls: ParseCalls

    async def play_episode(
        self,
        task: Task,
        desktop: LeasedDesktop,
        generate: Generate,
        chat: ChatTokenizer,
        config: GuiAgentConfig,
        limits: TokenLimits,
        watcher: Watcher | None = None,
        decode: DecodeScreenshot = decode_in_thread,
    ) -> Episode:
        """Have the program play `task`, asking an engine that takes tokens; see `play_by`."""
        asked = TokenChat(generate, chat, config, limits, self.parse_calls)
        return await play_by(self.program, task, desktop, asked, config, watcher, decode)


async def play_by(
    program: Program,
    task: Task,
    desktop: LeasedDesktop,
    chat: PolicyChat,
    config: GuiAgentConfig,
    watcher: Watcher | None = None,
    decode: DecodeScreenshot = decode_lazily,
) -> Episode:
    """Have a program play `task`, and have it evaluated.

    Args:
        chat: how this episode's policy is asked.

    Raises:
        DesktopError: the desktop failed; nothing of the episode may be used.
        GenerationError: the engine gave no usable reply, or the program failed (`HarnessError`).
        ConfigError: the program's first prompt does not fit the limits.
    """
    server = await shared_server()
    ended: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
    client = HarnessClient(chat, config, decode, ended, watcher, f"http://127.0.0.1:{server.port}/v1")
    player = _HarnessPlayer(program, desktop, client, chat, config, decode, ended)
    with server.serving(client):
        return await evaluated(task, desktop, player)


class _HarnessPlayer(Player):
    """The state of one running episode."""

    def __init__(
        self,
        program: Program,
        desktop: LeasedDesktop,
        client: HarnessClient,
        chat: PolicyChat,
        config: GuiAgentConfig,
        decode: DecodeScreenshot,
        ended: asyncio.Future[StopReason],
    ):
        super().__init__(desktop)
        self.turns = client.turns
        self._program = program
        self._client = client
        self._chat = chat
        self._config = config
        self._decode = decode
        self._ended = ended
        self._facts: dict[str, Any] = {}

    async def play(self, task: Task) -> StopReason:
        observation = await self.reset(task)
        screen = Size(*(await self._decode(observation)).size)
        desktop = PlayedDesktop(self._desktop, observation, screen, self.turns, self._ended)
        self._facts = {"image_size": self._chat.image_size(screen)}
        try:
            stop_reason = await self._run(self._program(task, self._client, desktop), desktop)
        finally:
            self.generate_s = self._client.waits.seconds
            self.desktop_s += desktop.waits.seconds
            self._ended.cancel()  # who still asks gets no reply
            self._facts["log"] = self._client.log
            if self.turns:
                self._lay_out()
        if not self.turns:
            raise HarnessError("a harness must ask the policy for at least one reply that is trained, got none")
        return stop_reason

    def facts(self) -> dict[str, Any]:
        return self._facts

    async def _run(self, running: Awaitable[StopReason | None], desktop: PlayedDesktop) -> StopReason:
        """Let the program run until it, or something else, ends the episode."""
        program = asyncio.ensure_future(running)
        try:
            await self._wait(program, desktop)
            if self._ended.done():
                return self._ended.result()
            return self._result(program) or desktop.said or StopReason.FINISHED
        finally:
            program.cancel()
            await asyncio.wait({program}, timeout=CANCEL_TIMEOUT_S)
            if not program.done():
                logger.error("a harness does not end, %g s after its episode", CANCEL_TIMEOUT_S)

    async def _wait(self, program: asyncio.Future[StopReason | None], desktop: PlayedDesktop) -> None:
        """Wait for the first end. Time in which the program waits for engine or desktop is not its own, of the desktop
        up to as much again: a program may look without end."""
        began, timeout_s = time.perf_counter(), self._config.harness_timeout_s
        while not (program.done() or self._ended.done()):
            waited_s = self._client.waits.seconds + min(desktop.waits.seconds, timeout_s)
            left_s = timeout_s - (time.perf_counter() - began - waited_s)
            if left_s <= 0:
                raise HarnessError(
                    f"a harness must end within gui_agent.harness_timeout_s={timeout_s:g} beside its waits for engine "
                    "and desktop; raise it if the work is rightly that long"
                )
            either: tuple[asyncio.Future[Any], ...] = (program, self._ended)
            await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def _result(self, program: asyncio.Future[StopReason | None]) -> StopReason | None:
        """What the program says of its end; an action that is none is the policy's doing."""
        try:
            return program.result()
        except ActionError as error:
            if not self.turns:
                raise HarnessError(f"the harness made no action of its own accord: {error}") from error
            self.turns[-1] = dataclasses.replace(self.turns[-1], parse_error=str(error))
            return StopReason.PARSE_ERROR
        except (ConfigError, MissingDependencyError, HarnessError):
            raise
        except (Exception, asyncio.CancelledError) as error:  # as of a task that the program itself cancelled
            raise HarnessError(f"the harness raised {error!r:.1000}") from error

    def _lay_out(self) -> None:
        """Make the rows, and number the images as they show them; those that no row shows come last."""
        shown, rows = self._client.images, self._rows()
        order, stretches = lay_out([row[-1].images for row in rows])
        names = list(shown)
        order += [name for name in names if name not in set(order)]
        seen = tuple(map(names.index, order))
        self.images = [shown[name] for name in order]
        self.screenshots = [self._client.files[name] for name in order]
        if seen != tuple(range(len(names))):
            self._facts["seen"] = seen
        self._number_turns({number: seen.index(number) for number in seen}, rows)
        self._facts["rows"] = sequences(rows, stretches)

    def _rows(self) -> list[list[TokenReply]]:
        limits = self._chat.limits
        return [] if limits is None else chains(trained(self._client.replies), limits)

    def _number_turns(self, numbers: Mapping[int, int], rows: Sequence[Sequence[TokenReply]]) -> None:
        """Have the turns name screenshots by their final numbers, and the row that trains them."""
        row_of = {reply: number for number, row in enumerate(rows) for reply in row}
        replies: Sequence[TokenReply | None] = self._client.replies or [None] * len(self.turns)
        for place, (turn, reply) in enumerate(zip(self.turns, replies, strict=True)):
            assert turn.request is not None, "a harness asked for it"
            newest, first = (numbers.get(number or 0, 0) for number in (turn.screenshot, turn.first_screenshot))
            request = _renumber(turn.request, numbers) | ({} if reply is None else {"row": row_of.get(reply)})
            self.turns[place] = dataclasses.replace(
                turn, screenshot=newest, first_screenshot=min(first, newest), request=request
            )


def _renumber(request: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """Return a request's record with other numbers of its screenshots."""

    def renumber(part: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**part, "screenshot": numbers[part["screenshot"]]} if "screenshot" in part else part

    messages = [{**message, "content": list(map(renumber, message["content"]))} for message in request["messages"]]
    return {**request, "messages": messages}
