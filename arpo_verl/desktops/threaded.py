"""This desktop may be called from anywhere: a notebook, a coroutine, several threads."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from arpo_verl.agent.actions.checks import check_action
from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.factory import environment_factory
from arpo_verl.errors import DesktopLostError, ImageError
from arpo_verl.lib.images import SENT, image_size
from arpo_verl.types import Action, Evaluation, GuestAnswer, GuestRequest, Observation, Task

T = TypeVar("T")
Calls = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]


class ThreadedDesktop(DesktopEnvironment):
    """This desktop makes all calls in its own thread, since OSWorld's client must not run in an event loop's thread.

    Raises:
        ConfigError: `package.module:name` names nothing that can be imported.
    """

    def __init__(self, config: EnvironmentConfig, name: str = "desktop"):
        self.config = config
        make = environment_factory(config)
        self._screen = config.screen_size
        self._lock = threading.Lock()
        self._closed = False
        self._calls: Calls = queue.SimpleQueue()
        # Not a pool's thread: at its end the interpreter would wait for a call that hangs.
        threading.Thread(target=_serve, args=(self._calls,), daemon=True, name=name).start()
        try:
            self._environment = self._call(lambda: make(config, name))
        except BaseException:
            self._calls.put(None)
            raise
        # This also closes a forgotten desktop, and runs when the interpreter ends.
        self._finalizer = weakref.finalize(self, _end, self._environment, self._calls)

    def prepare(self) -> None:
        self._call(lambda: self._environment.prepare())

    def is_ready(self) -> bool:
        return self._call(lambda: self._environment.is_ready())

    def reset(self, task: Task) -> Observation:
        return self._seen(self._call(lambda: self._environment.reset(task)))

    def step(self, action: Action) -> Observation:
        """See `DesktopEnvironment.step`.

        Raises:
            ActionError: no desktop can do this action; it does not reach the desktop.
        """
        check_action(action, self._screen)
        return self._seen(self._call(lambda: self._environment.step(action)))

    def look(self) -> Observation:
        return self._seen(self._call(lambda: self._environment.look()))

    def ask(self, request: GuestRequest) -> GuestAnswer:
        return self._call(lambda: self._environment.ask(request))

    def evaluate(self) -> Evaluation:
        return self._call(lambda: self._environment.evaluate())

    def close(self) -> None:
        """Close the desktop; this ends a call that is under way."""
        with self._lock:
            self._closed = True
        self._finalizer()

    def _seen(self, observation: Observation) -> Observation:
        """Remember the screen's size for the next action: it may differ from the configured one."""
        with contextlib.suppress(ImageError):
            self._screen = image_size(observation.screenshot, SENT)
        return observation

    def _call(self, function: Callable[[], T]) -> T:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise DesktopLostError("this desktop was closed; make another")
            self._calls.put((function, future))
        return future.result()


def _serve(calls: Calls) -> None:
    """Make the queue's calls one after the other, until None comes."""
    while (call := calls.get()) is not None:
        function, future = call
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)


def _end(environment: DesktopEnvironment, calls: Calls) -> None:
    try:
        environment.close()
    finally:
        calls.put(None)
