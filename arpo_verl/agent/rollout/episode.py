"""Play one episode on one desktop: look, reply, act, until the agent or a limit ends it. Then evaluate it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from PIL import Image

from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Conversation, Generate, TokenConversation, TokenLimits
from arpo_verl.agent.rollout.sequence import EpisodeSequence
from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.errors import ActionError, ActionParseError, DesktopEndedError, DesktopSetupError, RequestError
from arpo_verl.types import Action, Evaluation, Fail, Finish, MetricCall, Observation, Size, StopReason, Task

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LeasedDesktop(Protocol):
    """A desktop of the pool: a `DesktopEnvironment` whose methods are awaited."""

    async def reset(self, task: Task) -> Observation: ...
    async def step(self, action: Action) -> Observation: ...
    async def evaluate(self) -> Evaluation: ...


@dataclass(frozen=True)
class Turn:
    """One reply: its text, and its actions or why it has none. Times are in seconds."""

    text: str
    thought: str = ""
    actions: tuple[Action, ...] = ()
    parse_error: str | None = None
    generate_s: float = 0.0
    desktop_s: float = 0.0
    """Time that its actions took; 0 until they are done."""
    first_screenshot: int = 0
    """Number of the first screenshot that the policy saw; it also saw all up to the one that it replies to."""
    screenshot: int | None = None
    """Number of the screenshot that this replies to; None: the one with the turn's own number."""
    request: Mapping[str, Any] | None = None
    """A harness's request, as JSON; None with our own loop, whose requests follow from the screenshots."""
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """The text of each token of the reply; empty if no policy wrote it in tokens."""


class Watcher(Protocol):
    """Follows an episode as it happens. Its methods must return at once and raise nothing."""

    def saw(self, screenshot: bytes) -> None:
        """Note that the policy sees another screenshot."""

    def replied(self, turns: tuple[Turn, ...]) -> None:
        """Note that the policy replied. `turns` are all so far; the newest one's actions come next."""


@dataclass(frozen=True)
class Midway:
    """The evaluator's score in the middle of an episode, as if a smaller limit of turns had ended it."""

    turns: int
    """Number of replies up to then."""
    success: float


@dataclass(frozen=True)
class Episode:
    """All that happened in an episode, and its score. Times are in seconds."""

    task: Task
    rows: tuple[EpisodeSequence, ...] = field(repr=False)
    """The conversation in tokens; empty if no policy wrote in tokens."""
    images: tuple[Image.Image, ...] = field(repr=False)
    screenshots: tuple[bytes, ...] = field(repr=False)
    """The screenshots that the policy saw, in order, as the desktop sent them: one for each of `images`."""
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    success: float
    """The evaluator's score, from 0 to 1, without the partial credit that training may give."""
    generate_s: float
    desktop_s: float
    """Time of all calls to the desktop: the set-up, the actions and the evaluation."""
    image_size: Size
    """Size of the images that the coordinates of the replies refer to."""
    metrics: tuple[MetricCall, ...] = ()
    """What the evaluator compared."""
    started_at: float = 0.0
    """Unix time when the task's set-up began."""
    wall_s: float = 0.0
    """Time from then to the evaluator's score."""
    reset_s: float = 0.0
    evaluate_s: float = 0.0
    share: float | None = None
    """Share of the evaluator's checks that were met, from 0 to 1; None if it was not asked for."""
    verdicts: tuple[Midway, ...] = ()
    """Scores in the middle of the episode, if they were asked for."""
    seen: tuple[int, ...] | None = None
    """For each screenshot, its number in the order in which the watcher saw them; None: the same order."""
    log: bytes = field(default=b"", repr=False)
    """What a harness's command printed."""

    @property
    def format_error(self) -> bool:
        return self.stop_reason is StopReason.PARSE_ERROR


DecodeScreenshot = Callable[[Observation], Awaitable[Image.Image]]
"""Decodes a screenshot to the image that the policy sees."""
Rest = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds."""


async def decode_in_thread(observation: Observation) -> Image.Image:
    """Decode in a thread, since other episodes share the event loop."""
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
    """Let a policy play `task` to its end and evaluate it. `watcher` follows what happens.

    Raises:
        DesktopError: the desktop failed; do not use anything of the episode.
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
    """Play `task` to its end, with any policy, and evaluate it.

    The evaluator runs however the episode ended, also after a malformed reply or at a limit. The desktop's state is
    what counts, as in the paper's r = r_t + r_f and in its code. If the policy ended the desktop, there is nothing to
    evaluate: the score is 0, and the episode is not repeated.

    Args:
        evaluate_after: numbers of replies after which the evaluator also runs, if the episode goes on. Use it only
            with evaluators that change nothing.
        rest: waits between two actions of one reply.

    Raises:
        DesktopError: the desktop failed; do not use anything of the episode.
    """
    return await evaluated(task, desktop, _Player(desktop, conversation, config, watcher, decode, evaluate_after, rest))


class Player:
    """Plays one episode up to its evaluation, and keeps what happened; see `Episode` for its fields."""

    def __init__(self, desktop: LeasedDesktop):
        self.images: list[Image.Image] = []
        self.screenshots: list[bytes] = []
        self.turns: list[Turn] = []
        self.generate_s = 0.0
        self.desktop_s = 0.0
        self.reset_s = 0.0
        self._desktop = desktop

    async def play(self, task: Task) -> StopReason:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Return the other fields of the `Episode`."""
        raise NotImplementedError

    async def reset(self, task: Task) -> Observation:
        """Set the desktop up, and count the time."""
        observation = await self.timed(self._desktop.reset(task))
        self.reset_s = self.desktop_s
        return observation

    async def timed(self, call: Awaitable[T]) -> T:
        """Await a call to the desktop and add its time."""
        began = time.perf_counter()
        try:
            return await call
        finally:
            self.desktop_s += time.perf_counter() - began


async def evaluated(task: Task, desktop: LeasedDesktop, player: Player) -> Episode:
    """Let `player` play `task` to its end, then evaluate the desktop; see `play`."""
    started_at, began = time.time(), time.perf_counter()
    before_verdict_s: float | None = None
    try:
        stop_reason = await player.play(task)
        before_verdict_s = player.desktop_s
        evaluation = await player.timed(desktop.evaluate())
    except DesktopEndedError as error:
        if not any(turn.actions or turn.request for turn in player.turns):  # the policy has not acted yet
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


class _Player(Player):
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
        super().__init__(desktop)
        self.verdicts: list[Midway] = []
        self._evaluate_after = evaluate_after
        self._rest = rest
        self._watcher = watcher
        self._conversation = conversation
        self._config = config
        self._decode = decode
        self._read = config.family.read

    async def play(self, task: Task) -> StopReason:
        observation = await self.reset(task)
        image = await self._decode(observation)
        self._conversation.open(task, Size(*image.size))
        self._keep(observation, image)
        while True:
            try:
                actions = await self._reply()
            except RequestError:  # a server has the conversation for longer than the model's context
                if not self.turns:
                    raise
                del self.images[-1], self.screenshots[-1]  # no reply saw them
                return StopReason.TOKEN_LIMIT
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

    def facts(self) -> dict[str, Any]:
        conversation = self._conversation
        image_size = conversation.image_size(Size(*self.images[0].size))
        return {"rows": tuple(conversation.rows), "image_size": image_size, "verdicts": tuple(self.verdicts)}

    async def _reply(self) -> tuple[Action, ...]:
        """Get one reply. Return its actions, or none if it is malformed."""
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
        """Do the actions in order. Those after the one that ends the episode are left out."""
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
