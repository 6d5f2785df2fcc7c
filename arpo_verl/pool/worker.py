"""The Ray actor that hosts desktops: one thread each, so that blocking clients never block the actor."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.factory import EnvironmentFactory, environment_factory
from arpo_verl.errors import ArpoError, ConfigError, DesktopEndedError, DesktopError
from arpo_verl.pool.slot import Slot
from arpo_verl.types import Action, Task

logger = logging.getLogger(__name__)

# Time that a worker gives all its desktops to close when the pool shuts down.
CLOSE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Reply:
    """What a call on a desktop came to, in plain values: an error class need not survive Ray's pickling."""

    value: Any = None
    error: str | None = None
    """The `DesktopError` class's name, `DesktopEndedError` or `ConfigError`."""
    message: str = ""
    seconds: float = 0.0
    """What the call took on the worker, without Ray and queues."""


class DesktopWorker:
    """Hosts desktops; the pool wraps it as an asyncio Ray actor. No public method blocks the actor's event loop.

    Args:
        config: which desktops.
        generations: {slot index: the generation of its first desktop here}.
    """

    def __init__(self, config: EnvironmentConfig, generations: dict[int, int]):
        self._config = config
        self._factory: EnvironmentFactory | None = None
        self._factory_lock = threading.Lock()
        self._slots = {index: Slot(index, self._make, first) for index, first in generations.items()}

    async def where(self) -> tuple[str, str]:
        """The node's id and address."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    async def live(self) -> None:
        """Never returns; to whoever waits for it, Ray tells this worker's death."""
        await asyncio.Event().wait()

    async def ping(self) -> dict[int, float]:
        """Seconds since each slot was last used."""
        now = time.monotonic()
        return {index: now - slot.last_used for index, slot in self._slots.items()}

    async def prepare(self, index: int, generation: int) -> Reply:
        """Have a clean desktop ready."""
        return await self._call(index, generation, lambda env: env.prepare())

    async def is_ready(self, index: int, generation: int) -> Reply:
        """Whether the desktop, which nobody uses, is still alive."""
        return await self._call(index, generation, lambda env: env.is_ready())

    async def reset(self, index: int, generation: int, task: Task) -> Reply:
        return await self._call(index, generation, lambda env: env.reset(task))

    async def step(self, index: int, generation: int, action: Action) -> Reply:
        return await self._call(index, generation, lambda env: env.step(action))

    async def evaluate(self, index: int, generation: int) -> Reply:
        return await self._call(index, generation, lambda env: env.evaluate())

    async def renew(self, index: int) -> int:
        """Throw the slot's desktop away; returns the next one's generation. It boots at the next call."""
        return self._slots[index].renew()

    async def close(self) -> None:
        """Close every desktop and wait for it."""
        await asyncio.to_thread(self._close_all)

    def __ray_shutdown__(self) -> None:
        self._close_all()

    def _close_all(self) -> None:
        closers = [slot.close() for slot in self._slots.values()]
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for closer in closers:
            closer.join(max(0.0, deadline - time.monotonic()))

    def _make(self, name: str) -> DesktopEnvironment:
        # The first desktop imports the client for seconds; the others wait for it instead of importing in parallel.
        with self._factory_lock:
            if self._factory is None:
                self._factory = environment_factory(self._config)
        return self._factory(self._config, name)

    async def _call(self, index: int, generation: int, function: Callable[[DesktopEnvironment], Any]) -> Reply:
        started = time.monotonic()
        try:
            value = await asyncio.wrap_future(self._slots[index].call(generation, function))
        except (DesktopError, DesktopEndedError, ConfigError) as error:
            return Reply(error=type(error).__name__, message=str(error), seconds=time.monotonic() - started)
        except ArpoError as error:  # MissingDependencyError, TaskError: no other desktop will do better
            return Reply(error="ConfigError", message=str(error), seconds=time.monotonic() - started)
        except Exception as error:
            # Not a fault that the interface knows: a bug, ours or a factory's. The desktop is still not to be trusted.
            logger.exception("desktop %s.%s raised an unexpected error", index, generation)
            message = f"unexpected {type(error).__name__}: {error}"
            return Reply(error="DesktopLostError", message=message, seconds=time.monotonic() - started)
        return Reply(value=value, seconds=time.monotonic() - started)
