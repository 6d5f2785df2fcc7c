"""A handle on a process, and how to start a sandbox that dies with this process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from arpo_verl.desktops.embedded.cgroups import Cgroup
from arpo_verl.lib import reaper


class ProcessHandle:
    """A handle on any process of this machine, by a descriptor that never comes to mean another process."""

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

    def move_to(self, group: Cgroup) -> None:
        """Put it, and what it starts from now on, under a group's limits, and before us where memory runs out.

        It sets the latter for itself too. But what we set, with root's CAP_SYS_RESOURCE, its programs cannot lower.

        Raises:
            OSError: it has ended.
        """
        pid = self.pid
        if not pid:  # 0 would be this process
            raise ProcessLookupError("it ended at once")
        group.admit(pid)
        with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "r+") as score:
            score.write(str(max(500, int(score.read()))))

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Return whether it ends within `timeout_s`. A namespace's first process is the last of it to end."""
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))


_threads: dict[tuple[int, str], ThreadPoolExecutor] = {}


def lasting_thread(name: str) -> ThreadPoolExecutor:
    """Return a thread that does one task after the other and lasts as long as this process; a fork gets another."""
    return _threads.setdefault((os.getpid(), name), ThreadPoolExecutor(1, thread_name_prefix=name))


def start_sandbox(command: Sequence[str], inherited: Sequence[int], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a bubblewrap that the kernel kills when this process ends.

    For its --die-with-parent the parent is the thread that started it, and a caller's thread may end early. So a thread
    that lasts starts it. Where bubblewrap stays as process 1, its programs may read what it was started with, by
    `/proc`. So it gets nothing of our environment but where programs are.
    """
    needed = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=inherited,
            start_new_session=True,  # only the owner handles a Ctrl-C in its terminal
            cwd="/",
            env=reaper.marked_environment(needed),
        )

    return lasting_thread("desktop-spawner").submit(start).result()


def in_memory(name: str, content: bytes) -> int:
    """Return the descriptor of a file in memory with this content; the caller closes it."""
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def tail(log: IO[bytes]) -> str:
    """Return the end of a log, for the end of a message; empty if there is none."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
    words = log.read(2000).decode(errors="replace").strip()
    return f": {words}" if words else ""
