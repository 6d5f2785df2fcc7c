"""One episode on one desktop: look, reply, act, until the agent or a limit ends it; then the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from PIL import Image

from arpo_verl.actions.ui_tars import Reply, parse_reply
from arpo_verl.errors import ActionParseError, ConfigError
from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.rollout.config import GuiAgentConfig, check_lengths
from arpo_verl.rollout.prompts import build_messages
from arpo_verl.rollout.sequence import EpisodeSequence
from arpo_verl.rollout.vision import decode_screenshot
from arpo_verl.types import Action, Evaluation, Fail, Finish, Observation, Size, StopReason, Task


class LeasedDesktop(Protocol):
    """A desktop of the pool: `DesktopEnvironment`, awaited."""

    async def reset(self, task: Task) -> Observation: ...
    async def step(self, action: Action) -> Observation: ...
    async def evaluate(self) -> Evaluation: ...


@dataclass(frozen=True)
class Generated:
    """One reply of the policy: its tokens and, where the engine tells them, their log-probs."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] | None


Generate = Callable[[list[int], list[Image.Image], int], Awaitable[Generated]]
"""(token ids so far, images so far, most tokens of the reply) -> the reply."""


@dataclass(frozen=True)
class Turn:
    """One reply as it was taken: its text, and either its actions or why it is none."""

    text: str
    thought: str = ""
    actions: tuple[Action, ...] = ()
    parse_error: str | None = None


@dataclass(frozen=True)
class Episode:
    """All that happened, judged. Times in seconds."""

    task: Task
    sequence: EpisodeSequence = field(repr=False)
    images: tuple[Image.Image, ...] = field(repr=False)
    screenshots: tuple[bytes, ...] = field(repr=False)
    """As sent by the desktop, one for each of `images`: those that the policy saw, in order."""
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    success: float
    """The evaluator's score, in [0, 1]."""
    generate_s: float
    desktop_s: float

    @property
    def format_error(self) -> bool:
        return self.stop_reason is StopReason.PARSE_ERROR


@dataclass(frozen=True)
class TokenLimits:
    """veRL's `rollout.prompt_length` and `rollout.response_length`."""

    prompt: int
    response: int


async def play_episode(
    task: Task,
    desktop: LeasedDesktop,
    generate: Generate,
    chat: ChatTokenizer,
    config: GuiAgentConfig,
    limits: TokenLimits,
) -> Episode:
    """Play `task` to its end and have it judged.

    The evaluator judges however the episode ended, after a malformed reply or at a limit too: the state of the desktop
    is what counts, as in the paper's r = r_t + r_f and its code.

    Raises:
        DesktopError: the desktop failed; nothing of the episode may be used.
        GenerationError: the engine gave no usable reply.
        ConfigError: the prompt does not fit its limit.
    """
    player = _Player(desktop, generate, chat, config, limits)
    stop_reason = await player.play(task)
    evaluation = await player.timed(desktop.evaluate())
    return Episode(
        task=task,
        sequence=player.sequence,
        images=tuple(player.images),
        screenshots=tuple(player.screenshots),
        turns=tuple(player.turns),
        stop_reason=stop_reason,
        success=evaluation.score,
        generate_s=player.generate_s,
        desktop_s=player.desktop_s,
    )


class _Player:
    """The state of one running episode."""

    sequence: EpisodeSequence

    def __init__(
        self,
        desktop: LeasedDesktop,
        generate: Generate,
        chat: ChatTokenizer,
        config: GuiAgentConfig,
        limits: TokenLimits,
    ):
        self.images: list[Image.Image] = []
        self.screenshots: list[bytes] = []
        self.turns: list[Turn] = []
        self.generate_s = 0.0
        self.desktop_s = 0.0
        self._desktop = desktop
        self._generate = generate
        self._chat = chat
        self._config = config
        self._limits = limits

    async def play(self, task: Task) -> StopReason:
        observation = await self.timed(self._desktop.reset(task))
        await self._begin(task, observation)
        while True:
            reply = await self._reply()
            if reply is None:
                return StopReason.PARSE_ERROR
            stop_reason, observation = await self._act(reply.actions)
            if stop_reason is not None:
                return stop_reason
            if len(self.turns) == self._config.max_turns:
                return StopReason.STEP_LIMIT
            if not await self._show(observation):
                return StopReason.TOKEN_LIMIT

    async def timed(self, call: Awaitable[Any]) -> Any:
        """Await a call on the desktop and count its time."""
        began = time.perf_counter()
        try:
            return await call
        finally:
            self.desktop_s += time.perf_counter() - began

    async def _begin(self, task: Task, observation: Observation) -> None:
        image = await self._decode(observation)
        screen = Size(*image.size)
        check_lengths(self._config, self._limits.response, self._chat.geometry.num_tokens(screen))
        messages = build_messages(task.instruction, kind=self._config.prompt, language=self._config.language)
        prompt_ids = self._chat.prompt(messages, screen)
        if len(prompt_ids) > self._limits.prompt:
            raise ConfigError(
                f"actor_rollout_ref.rollout.prompt_length must hold the prompt of task {task.task_id} with its first "
                f"screenshot, {len(prompt_ids)} tokens, got {self._limits.prompt}; raise data.max_prompt_length"
            )
        self.sequence = EpisodeSequence(prompt_ids)
        self._keep(observation, image)

    async def _reply(self) -> Reply | None:
        """Let the policy reply; None when the reply is malformed."""
        max_tokens = self._config.max_reply_tokens
        began = time.perf_counter()
        generated = await self._generate(self.sequence.token_ids, list(self.images), max_tokens)
        self.generate_s += time.perf_counter() - began
        token_ids = generated.token_ids[:max_tokens]  # for an engine that knows no such limit
        log_probs = generated.log_probs[:max_tokens] if generated.log_probs is not None else None
        self.sequence.add_reply(token_ids, log_probs)
        text = self._chat.text(token_ids)
        try:
            if len(token_ids) == max_tokens and not self._chat.ends_turn(token_ids[-1]):
                raise ActionParseError(f"a reply must end within gui_agent.max_reply_tokens={max_tokens}, got no end")
            screen = Size(*self.images[-1].size)
            reply = parse_reply(text, self._chat.geometry.image_size(screen), screen)
        except ActionParseError as error:
            self.turns.append(Turn(text, parse_error=str(error)))
            return None
        self.turns.append(Turn(text, reply.thought, reply.actions))
        return reply

    async def _act(self, actions: Sequence[Action]) -> tuple[StopReason | None, Observation]:
        """Do the reply's actions in order; those after the one that ends the episode are not done."""
        for action in actions:
            observation = await self.timed(self._desktop.step(action))
            if isinstance(action, Finish):
                return StopReason.FINISHED, observation
            if isinstance(action, Fail):
                return StopReason.FAILED, observation
        return None, observation

    async def _show(self, observation: Observation) -> bool:
        """Append a screenshot, if it and a whole reply to it still fit: neither is ever cut short by the limit."""
        image = await self._decode(observation)
        context = self._chat.next_screenshot(self.sequence.token_ids[-1], Size(*image.size))
        used = len(self.sequence.response_ids) + len(context) + self._config.max_reply_tokens
        if used > self._limits.response:
            return False
        self.sequence.add_context(context)
        self._keep(observation, image)
        return True

    def _keep(self, observation: Observation, image: Image.Image) -> None:
        self.images.append(image)
        self.screenshots.append(observation.screenshot)

    async def _decode(self, observation: Observation) -> Image.Image:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, decode_screenshot, observation.screenshot)
