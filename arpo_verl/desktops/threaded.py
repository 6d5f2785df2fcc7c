"""A desktop in a thread of its own, which may be called from anywhere: a notebook, a coroutine, several threads."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, TypeVar

from arpo_verl.agent.actions.checks import check_action
from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.factory import environment_factory
from arpo_verl.errors import DesktopLostError, ImageError
from arpo_verl.lib.images import SENT, image_size
from arpo_verl.types import Action, Evaluation, GuestAnswer, GuestRequest, Observation, Task

logger = logging.getLogger(__name__)
T = TypeVar("T")


class DesktopThread:
    """A desktop, and the thread that makes it and all calls on it, one after the other.

    OSWorld's client must not run in an event loop's thread, and Playwright works only in the thread that made it.

    Args:
        make: makes the desktop, at the first call.
        name: the thread's.
    """

    def __init__(self, make: Callable[[], DesktopEnvironment], name: str):
        self._make = make
        self._name = name
        self._environment: DesktopEnvironment | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._calls: queue.SimpleQueue[tuple[Callable[[DesktopEnvironment], Any], Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        # Not a pool's thread: at its end the interpreter would wait for a call that hangs.
        threading.Thread(target=self._serve, daemon=True, name=name).start()

    def call(self, function: Callable[[DesktopEnvironment], T]) -> Future[T]:
        """Let the thread run `function` on the desktop, after all earlier calls.

        Raises:
            DesktopLostError: the desktop is closed.
        """
        future: Future[T] = Future()
        future.add_done_callback(self._pending.discard)
        with self._lock:
            if self._is_closed:
                raise DesktopLostError(f"{self._name} was closed; make another")
            self._pending.add(future)
            self._calls.put((function, future))
        return future

    def close(self) -> None:
        """Fail all calls, then close the desktop: that kills its guest, and ends a hung call. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            pending, environment = list(self._pending), self._environment
            self._environment = None
        self._calls.put(None)
        for future in pending:
            _settle(future.set_exception, DesktopLostError(f"{self._name} was closed during the call"))
        if environment is not None:
            environment.close()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None and not self._is_closed:
            function, future = call
            try:
                outcome = function(self._made())
            except Exception as error:
                _settle(future.set_exception, error)
            except BaseException as error:  # a library's sys.exit would end the thread
                _settle(future.set_exception, RuntimeError(f"a desktop call tried to end the process: {error!r}"))
            else:
                _settle(future.set_result, outcome)

    def _made(self) -> DesktopEnvironment:
        environment = self._environment or self._make()
        with self._lock:
            if not self._is_closed:
                self._environment = environment
                return environment
        environment.close()
        raise DesktopLostError(f"{self._name} was closed while it was made")


class ThreadedDesktop(DesktopEnvironment):
    """A desktop for callers in any thread or coroutine; its calls block.

    Raises:
        ConfigError: `package.module:name` names nothing that can be imported.
    """

    def __init__(self, config: EnvironmentConfig, name: str = "desktop"):
        self.config = config
        self._screen = config.screen_size
        self._thread = DesktopThread(partial(environment_factory(config), config, name), name)
        # This also closes a forgotten desktop, and runs when the interpreter ends.
        self._finalizer = weakref.finalize(self, self._thread.close)
        try:
            self._call(lambda environment: None)
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        self._call(lambda environment: environment.prepare())

    def is_ready(self) -> bool:
        return self._call(lambda environment: environment.is_ready())

    def reset(self, task: Task) -> Observation:
        return self._seen(self._call(lambda environment: environment.reset(task)))

    def step(self, action: Action) -> Observation:
        """See `DesktopEnvironment.step`.

        Raises:
            ActionError: no desktop can do this action; it does not reach the desktop.
        """
        check_action(action, self._screen)
        return self._seen(self._call(lambda environment: environment.step(action)))

    def look(self) -> Observation:
        return self._seen(self._call(lambda environment: environment.look()))

    def ask(self, request: GuestRequest) -> GuestAnswer:
        return self._call(lambda environment: environment.ask(request))

    def evaluate(self) -> Evaluation:
        return self._call(lambda environment: environment.evaluate())

    def close(self) -> None:
        """Close the desktop; this ends a call that is under way."""
        self._finalizer()

    def _seen(self, observation: Observation) -> Observation:
        """Remember the screen's size for the next action: it may differ from the configured one."""
        with contextlib.suppress(ImageError):
            self._screen = image_size(observation.screenshot, SENT)
        return observation

    def _call(self, function: Callable[[DesktopEnvironment], T]) -> T:
        return self._thread.call(function).result()


def _settle(settle: Callable[[Any], None], outcome: Any) -> None:
    """Give a future its outcome, unless its caller has gone, or the desktop was closed during the call."""
    try:
        settle(outcome)
    except InvalidStateError:
        logger.debug("a call ended after its desktop was given up")
