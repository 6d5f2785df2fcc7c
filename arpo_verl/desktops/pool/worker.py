"""A Ray actor that hosts desktops, with a thread for each, so that blocking clients never block the actor."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.factory import EnvironmentFactory, environment_factory
from arpo_verl.desktops.pool.metrics import fault_of
from arpo_verl.errors import ArpoError, ConfigError, DesktopEndedError, DesktopError, DesktopLostError
from arpo_verl.types import Action, GuestRequest, Task

logger = logging.getLogger(__name__)
T = TypeVar("T")

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
        self._factory: EnvironmentFactory | None = None
        self._factory_lock = threading.Lock()
        self._slots = {index: DesktopThread(index, self._make, first) for index, first in generations.items()}

    async def where(self) -> tuple[str, str]:
        """Return the node's id and address."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    async def live(self) -> None:
        """Never return, so that a caller that waits learns of this worker's death."""
        await asyncio.Event().wait()

    async def ping(self) -> dict[int, float]:
        """Return the seconds since each slot was last used."""
        now = time.monotonic()
        return {index: now - slot.last_used for index, slot in self._slots.items()}

    async def prepare(self, index: int, generation: int) -> CallResult:
        """Boot a clean desktop."""
        return await self._call(index, generation, lambda env: env.prepare())

    async def is_ready(self, index: int, generation: int) -> CallResult:
        """Return whether an idle desktop is still alive."""
        return await self._call(index, generation, lambda env: env.is_ready())

    async def reset(self, index: int, generation: int, task: Task) -> CallResult:
        return await self._call(index, generation, lambda env: env.reset(task))

    async def step(self, index: int, generation: int, action: Action) -> CallResult:
        return await self._call(index, generation, lambda env: env.step(action))

    async def look(self, index: int, generation: int) -> CallResult:
        return await self._call(index, generation, lambda env: env.look())

    async def ask(self, index: int, generation: int, request: GuestRequest) -> CallResult:
        return await self._call(index, generation, lambda env: env.ask(request))

    async def evaluate(self, index: int, generation: int) -> CallResult:
        return await self._call(index, generation, lambda env: env.evaluate())

    async def renew(self, index: int) -> int:
        """Throw the slot's desktop away; return the generation of the next one, which boots at the next call."""
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
        # The first desktop imports the client, which takes seconds; the others wait instead of importing it too.
        with self._factory_lock:
            if self._factory is None:
                self._factory = environment_factory(self._config)
        return self._factory(self._config, name)

    async def _call(self, index: int, generation: int, function: Callable[[DesktopEnvironment], Any]) -> CallResult:
        started = time.monotonic()
        try:
            value = await asyncio.wrap_future(self._slots[index].call(generation, function))
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


class DesktopThread:
    """A slot for a desktop: its current environment, and the only thread that calls it, a daemon.

    Every desktop of a slot has a generation. A call names the generation that it is for, so that a holder whose desktop
    was taken away cannot touch the next holder's.
    """

    def __init__(self, index: int, make: Callable[[str], DesktopEnvironment], generation: int = 1):
        self.index = index
        self.generation = generation
        self.last_used = time.monotonic()
        self._make = make
        self._env: DesktopEnvironment | None
        self._start()

    def call(self, generation: int, function: Callable[[DesktopEnvironment], T]) -> Future[T]:
        """Let the slot's thread run `function` on the desktop, after all earlier calls."""
        future: Future[T] = Future()
        with self._wake:
            if self._closed or generation != self.generation:
                raise DesktopLostError(f"desktop {self.index}.{generation} was given up; lease another")
            self.last_used = time.monotonic()
            self._queue.append((function, future))
            self._wake.notify()
        return future

    def renew(self) -> int:
        """Give up the desktop, even with a hung thread, and return the generation of the next one."""
        self.close()
        self.generation += 1
        self._start()
        return self.generation

    def close(self) -> threading.Thread:
        """Close the desktop in another thread: that kills its guest, which also ends a hung call."""
        with self._wake:
            self._closed = True
            abandoned = [self._running, *(future for _, future in self._queue)]
            self._queue.clear()
            env, self._env = self._env, None
            self._wake.notify_all()
        lost = DesktopLostError(f"desktop {self.index}.{self.generation} was given up during the call")
        for future in filter(None, abandoned):
            _settle(future, error=lost)
        closer = threading.Thread(target=_close_quietly, args=(env,), daemon=True, name=f"close-{self.index}")
        closer.start()
        return closer

    def _start(self) -> None:
        # Everything is new: a hung thread of the last generation keeps its own condition and queue, and ends by itself.
        self._wake = threading.Condition()
        self._queue: list[tuple[Callable[[DesktopEnvironment], Any], Future[Any]]] = []
        self._running: Future[Any] | None = None
        self._env = None
        self._closed = False
        name = f"desktop-{self.index}.{self.generation}"
        threading.Thread(target=self._run, args=(name, self.generation), daemon=True, name=name).start()

    def _run(self, name: str, generation: int) -> None:
        wake, queue = self._wake, self._queue
        env: DesktopEnvironment | None = None
        while True:
            with wake:
                wake.wait_for(lambda: queue or self._over(generation))
                if self._over(generation):
                    return
                function, future = queue.pop(0)
                self._running = future
            try:
                env = env or self._adopt(name, generation)
                result = function(env)
            except Exception as error:
                _settle(future, error=error)
            except BaseException as error:  # a library's sys.exit would end the worker with all its desktops
                _settle(future, error=RuntimeError(f"a desktop call tried to end the process: {error!r}"))
            else:
                _settle(future, result=result)

    def _over(self, generation: int) -> bool:
        return self._closed or generation != self.generation

    def _adopt(self, name: str, generation: int) -> DesktopEnvironment:
        """Make the environment in its own thread: clients such as Playwright work only in the thread that made them."""
        env = self._make(name)
        with self._wake:
            if not self._over(generation):
                self._env = env
                return env
        _close_quietly(env)
        raise DesktopLostError(f"{name} was given up while it was made")


def _settle(future: Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    """Give the future its outcome, unless another caller came first."""
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        logger.debug("a call ended after its desktop was given up")


def _close_quietly(env: DesktopEnvironment | None) -> None:
    if env is None:
        return
    try:
        env.close()
    except Exception:
        logger.exception("closing a desktop failed; it may have left processes behind")
