"""The host's side of `guest/fork_server.py`: it starts a fork server in its bubblewrap, asks for forks, and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import IO

from arpo_verl.desktops.embedded import process
from arpo_verl.errors import DesktopBootError
from arpo_verl.lib.bubblewrap import USER_NAMESPACES

START_TIMEOUT_S = 180.0
"""The time-out of a start, until Python has all imports: 0.3 s for a desktop, 2 s for evaluators on an idle machine."""
FORK_TIMEOUT_S = 60.0
"""The time-out of a fork; a warm server takes 10 ms."""
_MAX_PACKET = 4096
InMemory = Callable[[bytes], int]
"""Makes a file of these bytes and returns its descriptor, which the server inherits."""


class ForkServer:
    """A running fork server. The kernel ends it and all its forks with this object, or with its process.

    Args:
        name: what it is, for messages.
        command: returns its command line from the descriptor of its channel.
    """

    def __init__(self, name: str, command: Callable[[int, InMemory], list[str]]):
        """Start it, without waiting for it."""
        self._name = name
        self._lock = threading.RLock()
        self._is_ready = False
        self._deadline = time.monotonic() + START_TIMEOUT_S
        self._log = tempfile.TemporaryFile()
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control, contextlib.ExitStack() as stack:
            inherited = [control.fileno()]

            def in_memory(content: bytes) -> int:
                inherited.append(process.in_memory("sandbox", content))
                stack.callback(os.close, inherited[-1])
                return inherited[-1]

            self._process = process.start_sandbox(command(control.fileno(), in_memory), inherited, self._log)
        _alive.add(self)
        self._finalizer = weakref.finalize(self, _end, self._process, self._control, self._log)

    @property
    def pid(self) -> int:
        """The id of bubblewrap's process."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Return whether it runs, or is still starting."""
        return self._process.poll() is None

    def await_ready(self) -> None:
        """Wait until it can fork.

        Raises:
            DesktopBootError: it does not start; with the reason, if it gave one.
        """
        with self._lock:
            if not self._is_ready:
                self._receive(self._deadline)
                self._is_ready = True

    def fork(self, descriptors: Sequence[int]) -> int:
        """Fork a process, which gets copies of these descriptors; return a descriptor of the process.

        Raises:
            DesktopBootError: it cannot.
        """
        with self._lock:
            self.await_ready()
            try:
                socket.send_fds(self._control, [b"fork"], descriptors)
            except OSError as error:
                raise self._failure(str(error)) from error
            return self._receive(time.monotonic() + FORK_TIMEOUT_S)[0]

    def close(self) -> None:
        """End it and all its forks. Safe to call twice."""
        self._finalizer()

    def _receive(self, deadline: float) -> list[int]:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self._process.kill()
            raise self._failure("it did not answer in time")
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, _MAX_PACKET, 1)
        except OSError as error:
            raise self._failure(str(error)) from error
        answer = json.loads(packet or b'{"error": ""}')
        if "error" in answer:
            raise self._failure(answer["error"])
        return descriptors

    def _failure(self, reason: str) -> DesktopBootError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        words = f" ({reason})" * bool(reason) + process.tail(self._log)
        refused = ("namespace", "uid map", "unshare", "Operation not permitted", "Permission denied")
        hint = f"; {USER_NAMESPACES}" if any(sign in words for sign in refused) else ""
        return DesktopBootError(f"{self._name} ended{words}{hint}")


def _end(bubblewrap: subprocess.Popen[bytes], control: socket.socket, log: IO[bytes]) -> None:
    """End bubblewrap, which ends the server, which ends every fork."""
    bubblewrap.kill()
    bubblewrap.wait()
    control.close()
    log.close()


_alive: weakref.WeakSet[ForkServer] = weakref.WeakSet()


def _forget_after_fork() -> None:
    """A fork of the owner must not keep a server alive by holding the other end of its channel."""
    for server in list(_alive):
        server._finalizer.detach()
        server._control.close()


os.register_at_fork(after_in_child=_forget_after_fork)
