"""One episode on one desktop: look, reply, act, until the agent or a limit ends it; then the verdict."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from PIL import Image

from arpo_verl.errors import ActionError, ActionParseError, DesktopEndedError, DesktopSetupError
from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import Conversation, Generate, TokenConversation, TokenLimits
from arpo_verl.rollout.sequence import EpisodeSequence
from arpo_verl.rollout.vision import decode_screenshot
from arpo_verl.types import Action, Evaluation, Fail, Finish, MetricCall, Observation, Size, StopReason, Task

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LeasedDesktop(Protocol):
    """A desktop of the pool: `DesktopEnvironment`, awaited."""

    async def reset(self, task: Task) -> Observation: ...
    async def step(self, action: Action) -> Observation: ...
    async def evaluate(self) -> Evaluation: ...


@dataclass(frozen=True)
class Turn:
    """One reply as it was taken: its text, and either its actions or why it is none. Times in seconds."""

    text: str
    thought: str = ""
    actions: tuple[Action, ...] = ()
    parse_error: str | None = None
    generate_s: float = 0.0
    desktop_s: float = 0.0
    """Of its actions; 0 until they are done."""
    first_screenshot: int = 0
    """Number of the first that was seen; with it all up to the one that this replies to."""
    screenshot: int | None = None
    """Number of the one that this replies to; None: the turn's own."""
    request: Mapping[str, Any] | None = None
    """What a harness asked, as JSON; None of our own loop, whose request follows from the screenshots."""
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """The text of each token of the reply; none where no policy spoke in tokens."""


class Watcher(Protocol):
    """Hears of an episode as it happens. Must return at once and raise nothing."""

    def saw(self, screenshot: bytes) -> None:
        """The policy is shown another screenshot."""

    def replied(self, turns: tuple[Turn, ...]) -> None:
        """The policy replied; `turns` are all so far. The newest one's actions are about to be done."""


@dataclass(frozen=True)
class Midway:
    """What the evaluator said on the way: of an episode that had ended at a smaller limit of turns."""

    turns: int
    """Replies up to then."""
    success: float


@dataclass(frozen=True)
class Episode:
    """All that happened, and the verdict. Times in seconds."""

    task: Task
    rows: tuple[EpisodeSequence, ...] = field(repr=False)
    """What was said, in tokens; none where no policy spoke in tokens."""
    images: tuple[Image.Image, ...] = field(repr=False)
    screenshots: tuple[bytes, ...] = field(repr=False)
    """As sent by the desktop, one for each of `images`: those that the policy saw, in order."""
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    success: float
    """The evaluator's score, in [0, 1]: the verdict, whatever partial credit training gives."""
    generate_s: float
    desktop_s: float
    """All calls together: the task's set-up, the actions and the evaluation."""
    image_size: Size
    """Of the images that the coordinates of the replies are in."""
    metrics: tuple[MetricCall, ...] = ()
    """What the evaluator looked at."""
    started_at: float = 0.0
    """Unix time at which the desktop was asked for the task's set-up."""
    wall_s: float = 0.0
    """From then to the verdict."""
    reset_s: float = 0.0
    evaluate_s: float = 0.0
    share: float | None = None
    """Of the evaluator's checks that were met, in [0, 1]; None where it was not asked for."""
    verdicts: tuple[Midway, ...] = ()
    """Those on the way, where they were asked for."""
    seen: tuple[int, ...] | None = None
    """Of each screenshot, as the how manieth the watcher saw it; None: in order."""
    log: bytes = field(default=b"", repr=False)
    """What a harness's command printed."""

    @property
    def format_error(self) -> bool:
        return self.stop_reason is StopReason.PARSE_ERROR


DecodeScreenshot = Callable[[Observation], Awaitable[Image.Image]]
"""A screenshot as the policy is shown it."""
Rest = Callable[[float], Awaitable[None]]
"""Lets so many seconds pass."""


async def decode_in_thread(observation: Observation) -> Image.Image:
    """Decode beside the event loop, which other episodes share."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, decode_screenshot, observation.screenshot)


async def play_episode(
    task: Task,
    desktop: LeasedDesktop,
    generate: Generate,
    chat: ChatTokenizer,
    config: GuiAgentConfig,
    limits: TokenLimits,
    watcher: Watcher | None = None,
    decode: DecodeScreenshot = decode_in_thread,
) -> Episode:
    """Let a policy play `task` to its end and have it evaluated; `watcher` hears what happens.

    Raises:
        DesktopError: the desktop failed; nothing of the episode may be used.
        GenerationError: the engine gave no usable reply.
        ConfigError: the prompt does not fit its limit.
    """
    conversation = TokenConversation(generate, chat, config, limits)
    return await play(task, desktop, conversation, config, watcher, decode)


async def play(
    task: Task,
    desktop: LeasedDesktop,
    conversation: Conversation,
    config: GuiAgentConfig,
    watcher: Watcher | None = None,
    decode: DecodeScreenshot = decode_in_thread,
    evaluate_after: Collection[int] = (),
    rest: Rest = asyncio.sleep,
) -> Episode:
    """Play `task` to its end, with any policy, and have it evaluated.

    The evaluator runs however the episode ended, after a malformed reply or at a limit too: the state of the desktop
    is what counts, as in the paper's r = r_t + r_f and its code. Where the policy ended the desktop nothing is left to
    be evaluated: 0, and no second try.

    Args:
        evaluate_after: numbers of replies after which the evaluator is asked on the way too, where the episode goes on:
            only where its looking changes nothing.
        rest: between two actions of one reply.

    Raises:
        DesktopError: the desktop failed; nothing of the episode may be used.
    """
    return await evaluated(task, desktop, _Player(desktop, conversation, config, watcher, decode, evaluate_after, rest))


class Player(Protocol):
    """Plays one episode up to its verdict, and keeps what happened; see `Episode` for its fields."""

    @property
    def images(self) -> Sequence[Image.Image]: ...
    @property
    def screenshots(self) -> Sequence[bytes]: ...
    @property
    def turns(self) -> Sequence[Turn]: ...
    @property
    def generate_s(self) -> float: ...
    @property
    def desktop_s(self) -> float: ...
    @property
    def reset_s(self) -> float: ...

    async def play(self, task: Task) -> StopReason: ...

    async def timed(self, call: Awaitable[T]) -> T:
        """Await a call on the desktop and count its time."""

    def facts(self) -> dict[str, Any]:
        """The other fields of the `Episode`."""


async def evaluated(task: Task, desktop: LeasedDesktop, player: Player) -> Episode:
    """Have `player` play `task` to its end, and the desktop evaluated; see `play`."""
    started_at, began = time.time(), time.perf_counter()
    before_verdict_s: float | None = None
    try:
        stop_reason = await player.play(task)
        before_verdict_s = player.desktop_s
        evaluation = await player.timed(desktop.evaluate())
    except DesktopEndedError as error:
        if not player.turns:  # nothing of the policy's has run there
            raise DesktopSetupError(str(error)) from error
        logger.info("task %s scores 0: %s", task.task_id, error)
        stop_reason, evaluation = StopReason.DESKTOP_ENDED, Evaluation(0.0)
    return Episode(
        task=task,
        images=tuple(player.images),
        screenshots=tuple(player.screenshots),
        turns=tuple(player.turns),
        stop_reason=stop_reason,
        success=evaluation.score,
        share=evaluation.share,
        generate_s=player.generate_s,
        desktop_s=player.desktop_s,
        metrics=evaluation.metrics,
        started_at=started_at,
        wall_s=time.perf_counter() - began,
        reset_s=player.reset_s,
        evaluate_s=0.0 if before_verdict_s is None else player.desktop_s - before_verdict_s,
        **player.facts(),
    )


class _Player:
    """The state of one running episode."""

    def __init__(
        self,
        desktop: LeasedDesktop,
        conversation: Conversation,
        config: GuiAgentConfig,
        watcher: Watcher | None,
        decode: DecodeScreenshot,
        evaluate_after: Collection[int],
        rest: Rest,
    ):
        self.images: list[Image.Image] = []
        self.screenshots: list[bytes] = []
        self.turns: list[Turn] = []
        self.generate_s = 0.0
        self.desktop_s = 0.0
        self.reset_s = 0.0
        self.verdicts: list[Midway] = []
        self._evaluate_after = evaluate_after
        self._rest = rest
        self._watcher = watcher
        self._desktop = desktop
        self._conversation = conversation
        self._config = config
        self._decode = decode
        self._read = config.family.read

    async def play(self, task: Task) -> StopReason:
        observation = await self.timed(self._desktop.reset(task))
        self.reset_s = self.desktop_s
        image = await self._decode(observation)
        self._conversation.open(task, Size(*image.size))
        self._keep(observation, image)
        while True:
            actions = await self._reply()
            if not actions:
                return StopReason.PARSE_ERROR
            stop_reason, observation = await self._act(actions)
            if stop_reason is not None:
                return stop_reason
            if len(self.turns) == self._config.max_turns:
                return StopReason.STEP_LIMIT
            if len(self.turns) in self._evaluate_after:
                evaluation = await self.timed(self._desktop.evaluate())
                self.verdicts.append(Midway(len(self.turns), evaluation.score))
            image = await self._decode(observation)
            stop_reason = self._conversation.show(Size(*image.size))
            if stop_reason is not None:
                return stop_reason
            self._keep(observation, image)

    async def timed(self, call: Awaitable[T]) -> T:
        """Await a call on the desktop and count its time."""
        began = time.perf_counter()
        try:
            return await call
        finally:
            self.desktop_s += time.perf_counter() - began

    def facts(self) -> dict[str, Any]:
        conversation = self._conversation
        image_size = conversation.image_size(Size(*self.images[0].size))
        return {"rows": tuple(conversation.rows), "image_size": image_size, "verdicts": tuple(self.verdicts)}

    async def _reply(self) -> tuple[Action, ...]:
        """Have one reply; no actions when it is malformed."""
        began = time.perf_counter()
        written = await self._conversation.reply(list(self.images))
        generate_s = time.perf_counter() - began
        self.generate_s += generate_s
        turn = Turn(
            written.text, generate_s=generate_s, first_screenshot=written.first_screenshot, tokens=written.tokens
        )
        try:
            if written.problem is not None:
                raise ActionParseError(written.problem)
            screen = Size(*self.images[-1].size)
            reply = self._read(written.text, self._conversation.image_size(screen), screen)
        except ActionError as error:
            self._take(replace(turn, parse_error=str(error)))
            return ()
        self._take(replace(turn, thought=reply.thought, actions=reply.actions))
        return reply.actions

    def _take(self, turn: Turn) -> None:
        self.turns.append(turn)
        if self._watcher is not None:
            self._watcher.replied(tuple(self.turns))

    async def _act(self, actions: Sequence[Action]) -> tuple[StopReason | None, Observation]:
        """Do the reply's actions, and note how long they took."""
        before_s = self.desktop_s
        try:
            return await self._do(actions)
        finally:
            self.turns[-1] = replace(self.turns[-1], desktop_s=self.desktop_s - before_s)

    async def _do(self, actions: Sequence[Action]) -> tuple[StopReason | None, Observation]:
        """Do the actions in order; those after the one that ends the episode are not done."""
        for number, action in enumerate(actions):
            if number > 0 and not isinstance(action, (Finish, Fail)):
                await self.timed(self._rest(self._config.between_actions_s))
            observation = await self.timed(self._desktop.step(action))
            if isinstance(action, Finish):
                return StopReason.FINISHED, observation
            if isinstance(action, Fail):
                return StopReason.FAILED, observation
        return None, observation

    def _keep(self, observation: Observation, image: Image.Image) -> None:
        self.images.append(image)
        self.screenshots.append(observation.screenshot)
        if self._watcher is not None:
            self._watcher.saw(observation.screenshot)
