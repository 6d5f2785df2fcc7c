"""A desktop that may be called from anywhere: a notebook, a coroutine, several threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.factory import environment_factory
from arpo_verl.errors import DesktopLostError
from arpo_verl.types import Action, Evaluation, Observation, Task

T = TypeVar("T")


class ThreadedDesktop(DesktopEnvironment):
    """One desktop of `config`; a thread of its own makes all calls, since OSWorld's client must not run where an event
    loop does.

    Raises:
        ConfigError: `package.module:factory` names nothing that can be imported.
    """

    def __init__(self, config: EnvironmentConfig, name: str = "desktop"):
        self.config = config
        make = environment_factory(config)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="desktop")
        self._closed = False
        self._environment = self._call(lambda: make(config, name))

    def prepare(self) -> None:
        self._call(lambda: self._environment.prepare())

    def is_ready(self) -> bool:
        return self._call(lambda: self._environment.is_ready())

    def reset(self, task: Task) -> Observation:
        return self._call(lambda: self._environment.reset(task))

    def step(self, action: Action) -> Observation:
        return self._call(lambda: self._environment.step(action))

    def evaluate(self) -> Evaluation:
        return self._call(lambda: self._environment.evaluate())

    def close(self) -> None:
        """Also while a call is under way, which it ends."""
        self._closed = True
        self._environment.close()
        self._thread.shutdown(wait=True)

    def _call(self, function: Callable[[], T]) -> T:
        if self._closed:
            raise DesktopLostError("this desktop was closed; make another")
        return self._thread.submit(function).result()
