"""A desktop for one person at a terminal: says what it does and how long it took, and keeps the newest screenshot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.threaded import ThreadedDesktop
from arpo_verl.types import Action, Evaluation, Observation, Task

T = TypeVar("T")


class WatchedDesktop(DesktopEnvironment):
    """A context manager, so that an interrupt at any moment leaves no desktop behind.

    Args:
        newest: the file that always holds the last screenshot.
        say: prints one line.
    """

    def __init__(self, config: EnvironmentConfig, newest: Path, say: Callable[[str], None]):
        self._environment = ThreadedDesktop(config, "try")
        self._newest = newest
        self._say = say

    def prepare(self) -> None:
        self._say("booting a desktop; importing OSWorld's client alone takes some seconds ...")
        self._timed("booted", self._environment.prepare)

    def reset(self, task: Task) -> Observation:
        self._say("setting the task up ...")
        return self._see(self._timed("set up", lambda: self._environment.reset(task)))

    def step(self, action: Action) -> Observation:
        return self._see(self._timed(str(action), lambda: self._environment.step(action)))

    def evaluate(self) -> Evaluation:
        self._say("asking the evaluator ...")
        return self._timed("judged", self._environment.evaluate)

    def close(self) -> None:
        self._environment.close()
        self._newest.unlink(missing_ok=True)

    def _timed(self, what: str, function: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = function()
        self._say(f"  {time.perf_counter() - began:6.2f} s  {what}")
        return result

    def _see(self, observation: Observation) -> Observation:
        # Replaced whole, so that a viewer that watches the file never reads half an image.
        part = self._newest.with_suffix(".part")
        part.write_bytes(observation.screenshot)
        os.replace(part, self._newest)
        return observation
