"""A desktop for one person at a terminal: says what it does and how long it took, and keeps the newest screenshot."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from arpo_verl.environments.awaited import AwaitedDesktop
from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.types import Action, Evaluation, Observation, Task

T = TypeVar("T")


class WatchedDesktop:
    """A `LeasedDesktop`; a context manager, so that an interrupt at any moment leaves no desktop behind.

    Args:
        environment: the desktop; closed with this.
        newest: the file that always holds the last screenshot.
        say: prints one line.
    """

    def __init__(self, environment: DesktopEnvironment, newest: Path, say: Callable[[str], None]):
        self._desktop = AwaitedDesktop(environment)
        self._newest = newest
        self._say = say

    def __enter__(self) -> WatchedDesktop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._desktop.__exit__(kind, error, at)
        self._newest.unlink(missing_ok=True)

    async def boot(self) -> None:
        """Have a clean desktop before the task is set up.

        Raises:
            DesktopBootError: none came up.
        """
        self._say("booting a desktop; importing OSWorld's client alone takes some seconds ...")
        await self._timed("booted", self._desktop.prepare())

    async def reset(self, task: Task) -> Observation:
        self._say("setting the task up ...")
        return self._see(await self._timed("set up", self._desktop.reset(task)))

    async def step(self, action: Action) -> Observation:
        return self._see(await self._timed(str(action), self._desktop.step(action)))

    async def evaluate(self) -> Evaluation:
        self._say("asking the evaluator ...")
        return await self._timed("judged", self._desktop.evaluate())

    async def _timed(self, what: str, call: Awaitable[T]) -> T:
        began = time.perf_counter()
        result = await call
        self._say(f"  {time.perf_counter() - began:6.2f} s  {what}")
        return result

    def _see(self, observation: Observation) -> Observation:
        # Replaced whole, so that a viewer that watches the file never reads half an image.
        part = self._newest.with_suffix(".part")
        part.write_bytes(observation.screenshot)
        os.replace(part, self._newest)
        return observation
