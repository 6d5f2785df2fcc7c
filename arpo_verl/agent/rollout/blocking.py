"""Play an episode without an event loop: the desktop is a blocking object, the policy a function."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from PIL import Image

from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Conversation, Written
from arpo_verl.agent.rollout.episode import Episode, play
from arpo_verl.agent.rollout.sequence import EpisodeSequence
from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.errors import ConfigError
from arpo_verl.types import Action, Evaluation, Observation, Size, StopReason, Task

T = TypeVar("T")

PolicyFunction = Callable[[str, list[Image.Image], list[str]], str]
"""(instruction, screenshots so far, replies so far) -> the next reply."""


class BlockingDesktop(Protocol):
    """The part of `DesktopEnvironment` that an episode needs."""

    def reset(self, task: Task) -> Observation: ...
    def step(self, action: Action) -> Observation: ...
    def evaluate(self) -> Evaluation: ...


class PolicyConversation:
    """An agent that is a Python function.

    Args:
        image_size: size of the image that the replies' coordinates refer to; None: the screen's.
    """

    rows: tuple[EpisodeSequence, ...] = ()

    def __init__(self, policy: PolicyFunction, image_size: Size | None = None):
        self._policy = policy
        self._image_size = image_size
        self._instruction = ""
        self._replies: list[str] = []

    def image_size(self, screen: Size) -> Size:
        return self._image_size or screen

    def open(self, task: Task, screen: Size) -> None:
        self._instruction = task.instruction

    async def reply(self, images: list[Image.Image]) -> Written:
        """Ask the policy for the next reply.

        Raises:
            ConfigError: the policy did not return text.
        """
        text = self._policy(self._instruction, images, list(self._replies))
        if not isinstance(text, str):
            raise ConfigError(f"a policy must return its reply as text, got {type(text).__name__}")
        self._replies.append(text)
        return Written(text)

    def show(self, screen: Size) -> StopReason | None:
        return None


def play_blocking(task: Task, desktop: BlockingDesktop, conversation: Conversation, config: GuiAgentConfig) -> Episode:
    """Play `task` to its end and evaluate it; see `arpo_verl.agent.rollout.episode.play`.

    Everything runs in the caller's thread, without an event loop. So Ctrl-C ends it at once, a notebook may call it,
    and policy and desktop may run event loops of their own.
    """
    episode = play(task, _Awaited(desktop), conversation, config, decode=_decode, rest=_rest)
    try:
        episode.send(None)
    except StopIteration as done:
        result: Episode = done.value
        return result
    episode.close()
    raise RuntimeError("an episode of blocking parts must not wait for an event loop")


async def _decode(observation: Observation) -> Image.Image:
    return decode_screenshot(observation.screenshot)


async def _rest(seconds: float) -> None:
    time.sleep(seconds)


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run as `asyncio.run` does, but let Ctrl-C end it at once, even in a blocking call."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    finally:
        if task.cancel():
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()


class _Awaited:
    """Gives a blocking desktop the awaitable methods that an episode calls."""

    def __init__(self, desktop: BlockingDesktop):
        self._desktop = desktop

    async def reset(self, task: Task) -> Observation:
        return self._desktop.reset(task)

    async def step(self, action: Action) -> Observation:
        return self._desktop.step(action)

    async def evaluate(self) -> Evaluation:
        return self._desktop.evaluate()
