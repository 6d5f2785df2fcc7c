"""Processes that end with their holder: a kernel's handle on one, and a thread to start those that die first."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ProcessHandle:
    """Any process of this machine, however it was started, by a descriptor that no other process ever gets."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self._finalizer = weakref.finalize(self, os.close, descriptor)

    @property
    def pid(self) -> int:
        """Its number here; 0 where it has ended."""
        with open(f"/proc/self/fdinfo/{self.descriptor}") as lines:
            return max(0, next(int(line.split()[1]) for line in lines if line.startswith("Pid:")))

    def kill(self) -> None:
        """Kill it, stopped or not. Safe to call twice, and from any thread."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it has, within `timeout_s`. The first process of a namespace is the last of it to end."""
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))


class LastingThread:
    """A thread that does one thing after the other and lasts as long as this process. A fork's begins anew."""

    def __init__(self, name: str):
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        _threads.add(self)

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """As an executor's."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
            return self._executor.submit(task)

    def _forget(self) -> None:
        self._executor, self._lock = None, threading.Lock()


_threads: weakref.WeakSet[LastingThread] = weakref.WeakSet()
_spawner = LastingThread("desktop-spawner")


def in_lasting_thread(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Run `start` in a thread that lasts as long as this process.

    bubblewrap's --die-with-parent means the thread that started it: a caller's thread may end long before.
    """
    return _spawner.submit(start).result()


def _forget_after_fork() -> None:
    for thread in list(_threads):
        thread._forget()


os.register_at_fork(after_in_child=_forget_after_fork)
