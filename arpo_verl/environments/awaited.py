"""A desktop whose calls are awaited, as an episode needs it, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.types import Action, Evaluation, Observation, Task


class AwaitedDesktop:
    """A `LeasedDesktop` in this process; a context manager, so that an end at any moment leaves no desktop behind.

    Args:
        environment: closed with this.
    """

    def __init__(self, environment: DesktopEnvironment):
        self._environment = environment
        # One thread for all calls: OSWorld's client must not run where an event loop does.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="desktop")

    def __enter__(self) -> AwaitedDesktop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._environment.close()  # ends a call that is under way, too
        self._thread.shutdown(wait=True)

    async def prepare(self) -> None:
        await self._call(self._environment.prepare)

    async def reset(self, task: Task) -> Observation:
        return await self._call(self._environment.reset, task)

    async def step(self, action: Action) -> Observation:
        return await self._call(self._environment.step, action)

    async def evaluate(self) -> Evaluation:
        return await self._call(self._environment.evaluate)

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
