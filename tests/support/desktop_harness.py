"""A running desktop with OSWorld's own controllers, and what tests ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psutil

from arpo_verl.desktops.embedded.provider import EmbeddedProvider
from arpo_verl.desktops.osworld.lean_imports import deferred_imports

PATIENCE_S = 300.0
"""Bounds a hang: a start took a minute on a machine with ten times the work that it could do."""


class Desktop(NamedTuple):
    """A running desktop as the unmodified client sees it."""

    provider: EmbeddedProvider
    controller: Any
    setup: Any

    def sh(self, line: str) -> str:
        """What a shell line in the guest writes, errors included."""
        answer = self.controller.run_bash_script(line)
        return answer["output"].strip()


def attach(provider: EmbeddedProvider) -> Desktop:
    """OSWorld's controllers for a started provider; they ask once."""
    with deferred_imports():
        from desktop_env.controllers.python import PythonController
        from desktop_env.controllers.setup import SetupController
    host, server, chromium, _, vlc = provider.get_ip_address().split(":")
    controller = PythonController(host, int(server))
    controller.retry_times, controller.retry_interval = 1, 0
    setup = SetupController(host, int(server), int(chromium), int(vlc), screen_width=640, screen_height=480)
    return Desktop(provider, controller, setup)


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Desktop]:
    """A desktop of its own, of a provider with these options."""
    provider = EmbeddedProvider(**options)
    provider.start_emulator()
    try:
        yield attach(provider)
    finally:
        provider.stop_emulator()


def eventually(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)
    return value


def await_window(desktop: Desktop, title: str) -> None:
    """Until the window of this title has the keyboard and is drawn."""
    code = f"from arpo_guest.drawn import require; require({title!r}, 0)"
    eventually(lambda: desktop.controller.execute_python_command(code)["returncode"] == 0)


async def until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
    """The same in an event loop; `condition` may be a coroutine function."""
    deadline = time.monotonic() + timeout_s
    while not (await value if inspect.isawaitable(value := condition()) else value):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        await asyncio.sleep(0.005)


def process_tree(pid: int) -> list[int]:
    """`pid` and its descendants, by every process's parent: the kernel's list of children may miss some while others
    end."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


def sandbox_processes(provider: EmbeddedProvider) -> list[int]:
    """Every process of a provider's desktop."""
    assert provider._guest is not None
    return process_tree(provider._guest._process.pid)
