"""Commands that run apart from the session, where no program of the desktop can reach them.

The sandbox's first process runs them. The desktop is in a process namespace below that one's, so its programs see no
process id of a command: they cannot trace it, signal it, or open its files under `/proc`. A command keeps the desktop's
user, so it can read only what that user may read.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import traceback
from multiprocessing.connection import Connection
from typing import Any

from .processes import Command, CommandTimeout, connect, run

TEMPORARY = "/dev/shm"
"""A folder in memory that only these commands share; it replaces the desktop's folder of this name."""
MEMORY = "mode=1777,size=64m,nr_inodes=1000"
START_TIMEOUT_S = 20.0


class ApartCommands:
    """The guest server's side: it asks the sandbox's first process to run commands.

    Args:
        first_process: our end of its channel.
    """

    def __init__(self, first_process: socket.socket):
        self._first_process = first_process

    def run(self, command: Command, shell: bool, timeout_s: float) -> dict[str, Any]:
        """See `processes.run`.

        Raises:
            CommandTimeout: the command did not end in time, so it was killed with its children.
            OSError: the command cannot start.
        """
        with connect(self._first_process) as connection:
            try:
                connection.send_bytes(json.dumps([command, shell, timeout_s]).encode())
                if not connection.poll(timeout_s + START_TIMEOUT_S):
                    raise CommandTimeout(f"timed out after {timeout_s:g} seconds: {command!r}")
                answer: dict[str, Any] = json.loads(connection.recv_bytes())
            except (EOFError, ConnectionError):
                raise OSError("no command starts: the desktop has no process left") from None
        if "failed" in answer:
            raise OSError(answer["failed"])
        return answer


def serve(requests: socket.socket, process_1: int) -> None:
    """Run commands, each in a fork, until the desktop's process 1 ends. Never returns.

    Args:
        requests: each packet brings the connection of one command.
        process_1: a descriptor of that process.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the dead
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would end this first process
    os.environ["TMPDIR"] = TEMPORARY
    poller = select.poll()
    for descriptor in (requests.fileno(), process_1):
        poller.register(descriptor, select.POLLIN)
    while process_1 not in (ready := [descriptor for descriptor, _ in poller.poll()]):
        for _ in ready:
            packet, descriptors, _, _ = socket.recv_fds(requests, 64, 1)
            if not packet:  # the guest server is gone
                poller.unregister(requests)
            for descriptor in descriptors:
                with contextlib.suppress(OSError):  # no process is left; the caller sees the connection end
                    _fork(descriptor)
                os.close(descriptor)
    os._exit(0)


def _fork(descriptor: int) -> None:
    if os.fork():
        return
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _answer(Connection(descriptor))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _answer(connection: Connection) -> None:
    command, shell, timeout_s = json.loads(connection.recv_bytes())
    try:
        answer = run(command, shell, timeout_s)
    except (CommandTimeout, OSError) as error:
        answer = {"failed": str(error)}
    connection.send_bytes(json.dumps(answer).encode())
