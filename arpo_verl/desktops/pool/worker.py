"""A Ray actor that hosts desktops, with a thread for each, so that blocking clients never block the actor."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.factory import environment_factory
from arpo_verl.desktops.pool.metrics import fault_of
from arpo_verl.desktops.threaded import DesktopThread
from arpo_verl.errors import ArpoError, ConfigError, DesktopEndedError, DesktopError, DesktopLostError

logger = logging.getLogger(__name__)

# The time that all desktops of a worker have to close when the pool shuts down.
CLOSE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class CallResult:
    """The result of a call on a desktop."""

    value: Any = None
    error: DesktopError | DesktopEndedError | ConfigError | None = None
    """An error of this package's own classes: the reader may not know a factory's class."""
    seconds: float = 0.0
    """Seconds that the call took on the worker, without Ray and queues."""


class DesktopWorker:
    """Hosts desktops; the pool wraps it as an asyncio Ray actor. No public method blocks the actor's event loop.

    Args:
        config: which desktops.
        generations: {slot index: the generation of its first desktop here}.
    """

    def __init__(self, config: EnvironmentConfig, generations: dict[int, int]):
        self._config = config
        self._generations = dict(generations)
        self._last_used = dict.fromkeys(generations, time.monotonic())
        self._desktops = {index: self._new(index) for index in generations}

    async def where(self) -> tuple[str, str]:
        """Return the node's id and address."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    async def live(self) -> None:
        """Never return, so that a caller that waits learns of this worker's death."""
        await asyncio.Event().wait()

    async def ping(self) -> dict[int, float]:
        """Return the seconds since each slot was last used."""
        now = time.monotonic()
        return {index: now - used for index, used in self._last_used.items()}

    async def call(self, index: int, generation: int, method: str, *args: Any) -> CallResult:
        """Call a method of the slot's `DesktopEnvironment`."""
        return await self._call(index, generation, lambda env: getattr(env, method)(*args))

    async def renew(self, index: int) -> int:
        """Give up the slot's desktop, even one that hangs; return the generation of the next one."""
        self._close(index)
        self._generations[index] += 1
        self._desktops[index] = self._new(index)
        return self._generations[index]

    async def close(self) -> None:
        """Close every desktop and wait for it."""
        await asyncio.to_thread(self._close_all)

    def __ray_shutdown__(self) -> None:
        self._close_all()

    def _close_all(self) -> None:
        closers = [self._close(index) for index in self._desktops]
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for closer in closers:
            closer.join(max(0.0, deadline - time.monotonic()))

    def _close(self, index: int) -> threading.Thread:
        """Close the slot's desktop in a thread, which is returned."""
        desktop = self._desktops[index]
        closer = threading.Thread(target=_close_quietly, args=(desktop,), daemon=True, name=f"close-{index}")
        closer.start()
        return closer

    def _new(self, index: int) -> DesktopThread:
        name = f"desktop-{index}.{self._generations[index]}"
        return DesktopThread(lambda: environment_factory(self._config)(self._config, name), name)

    async def _call(self, index: int, generation: int, function: Callable[[DesktopEnvironment], Any]) -> CallResult:
        started = time.monotonic()
        try:
            if generation != self._generations[index]:
                raise DesktopLostError(f"desktop {index}.{generation} was given up; lease another")
            self._last_used[index] = started
            value = await asyncio.wrap_future(self._desktops[index].call(function))
        except (DesktopError, DesktopEndedError, ConfigError) as error:
            fault = fault_of(error) or DesktopLostError
            return CallResult(error=fault(str(error)), seconds=time.monotonic() - started)
        except ArpoError as error:  # MissingDependencyError, TaskError: another desktop would fail too
            return CallResult(error=ConfigError(str(error)), seconds=time.monotonic() - started)
        except Exception as error:
            # This is a bug, ours or a factory's, and no fault of the interface. We do not trust the desktop any more.
            logger.exception("desktop %s.%s raised an unexpected error", index, generation)
            lost = DesktopLostError(f"unexpected {type(error).__name__}: {error}")
            return CallResult(error=lost, seconds=time.monotonic() - started)
        return CallResult(value=value, seconds=time.monotonic() - started)


def _close_quietly(desktop: DesktopThread) -> None:
    try:
        desktop.close()
    except Exception:
        logger.exception("closing a desktop failed; it may have left processes behind")
