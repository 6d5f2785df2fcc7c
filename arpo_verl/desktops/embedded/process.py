"""A handle on a process, and how to start a sandbox that dies with this process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TypeVar

from arpo_verl.lib import reaper, relay

T = TypeVar("T")


class ProcessHandle:
    """This is a handle on any process of this machine, by a descriptor that never comes to mean another process."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self._finalizer = weakref.finalize(self, os.close, descriptor)

    @property
    def pid(self) -> int:
        """The process id here; 0 if it has ended."""
        with open(f"/proc/self/fdinfo/{self.descriptor}") as lines:
            return max(0, next(int(line.split()[1]) for line in lines if line.startswith("Pid:")))

    def kill(self) -> None:
        """Kill it, even if it is stopped. Safe to call twice, and from any thread."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Return whether it ends within `timeout_s`. A namespace's first process is the last of it to end."""
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))


class LastingThread:
    """This thread does one task after the other and lasts as long as this process; a fork starts a new one."""

    def __init__(self, name: str):
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        _threads.add(self)

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Submit a task, as to an executor."""
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

    For bubblewrap's --die-with-parent the parent is the thread that started it, and a caller's thread may end early.
    """
    return _spawner.submit(start).result()


def start_sandbox(command: Sequence[str], inherited: Sequence[int], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a bubblewrap that the kernel kills when this process ends, and collect it if it ends first."""
    process = in_lasting_thread(
        lambda: subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=inherited,
            start_new_session=True,  # only the owner handles a Ctrl-C in its terminal
            cwd="/",
            env=reaper.marked_environment(),
        )
    )
    descriptor = os.pidfd_open(process.pid)
    relay.when_readable(descriptor, process.wait)
    os.close(descriptor)
    return process


def last_words(process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """Return an ending sandbox's last output, for the end of a message; empty if there is none."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    return tail(log)


def tail(log: IO[bytes]) -> str:
    """Return the end of a log, for the end of a message; empty if there is none."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
    words = log.read(2000).decode(errors="replace").strip()
    return f": {words}" if words else ""


def _forget_after_fork() -> None:
    for thread in list(_threads):
        thread._forget()


os.register_at_fork(after_in_child=_forget_after_fork)
