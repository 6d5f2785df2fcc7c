"""One place for a desktop: a thread of its own calls it, so that a blocking client blocks nobody else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.errors import DesktopLostError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Slot:
    """One place for a desktop: its current environment, and the daemon thread that alone calls it.

    Every desktop of a slot has its generation. A call names the one it means, so that a holder whose desktop was taken
    away cannot touch the next holder's.
    """

    def __init__(self, index: int, make: Callable[[str], DesktopEnvironment], generation: int = 1):
        self.index = index
        self.generation = generation
        self.last_used = time.monotonic()
        self._make = make
        self._env: DesktopEnvironment | None
        self._start()

    def call(self, generation: int, function: Callable[[DesktopEnvironment], T]) -> Future[T]:
        """Have the slot's thread run `function` on the desktop, after what was asked before."""
        future: Future[T] = Future()
        with self._wake:
            if self._closed or generation != self.generation:
                raise DesktopLostError(f"desktop {self.index}.{generation} was given up; lease another")
            self.last_used = time.monotonic()
            self._queue.append((function, future))
            self._wake.notify()
        return future

    def renew(self) -> int:
        """Abandon the desktop, hung thread and all, and return the generation of the one to come."""
        self.close()
        self.generation += 1
        self._start()
        return self.generation

    def close(self) -> threading.Thread:
        """Close the desktop in a thread of its own: that kills its guest, which also frees a hung call."""
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
        # All new: a hung thread of the last generation keeps its own condition and queue, and ends by itself.
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
            except BaseException as error:  # a library's sys.exit would end the worker, all its desktops with it
                _settle(future, error=RuntimeError(f"a desktop call tried to end the process: {error!r}"))
            else:
                _settle(future, result=result)

    def _over(self, generation: int) -> bool:
        return self._closed or generation != self.generation

    def _adopt(self, name: str, generation: int) -> DesktopEnvironment:
        """Make the environment in its own thread: clients such as Playwright are bound to the thread that made them."""
        env = self._make(name)
        with self._wake:
            if not self._over(generation):
                self._env = env
                return env
        _close_quietly(env)
        raise DesktopLostError(f"{name} was given up while it was made")


def _settle(future: Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    """Give the future its outcome, unless whoever came first did."""
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
