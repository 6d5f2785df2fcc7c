"""Programs of the user's session: how they start, and how commands run to their end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from multiprocessing.connection import Connection
from typing import IO, Any

from . import layout

Command = str | list[str]
MAX_OUTPUT = 8 << 20
"""Most bytes of a command's output that we return; it can write as much as a file may hold."""


class CommandTimeout(Exception):
    """A command took too long, so it was killed."""


def run(
    command: Command, shell: bool, timeout_s: float, cwd: str | None = None, merge_errors: bool = False
) -> dict[str, Any]:
    """Run a program to its end, without waiting for children that it leaves in the background.

    `merge_errors` writes standard error into `output`, in the order in which it came.

    Raises:
        CommandTimeout: the program did not end in time, so it was killed with its children.
        OSError: the program cannot start.
    """
    with os.fdopen(os.memfd_create("output"), "w+b") as output, os.fdopen(os.memfd_create("error"), "w+b") as error:
        process = start(command, shell, cwd=cwd, stdout=output, stderr=output if merge_errors else error)
        try:
            returncode = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise CommandTimeout(f"timed out after {timeout_s:g} seconds: {command!r}") from None
        return {"output": text_of(output), "error": text_of(error), "returncode": returncode}


def start(command: Command, shell: bool, **options: Any) -> subprocess.Popen[bytes]:
    """Start a program in the user's session, as its own terminal would."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": None, **options}
    options["cwd"] = options["cwd"] or layout.HOME
    return subprocess.Popen(command, shell=shell, stdin=subprocess.DEVNULL, start_new_session=True, **options)


def text_of(file: IO[bytes]) -> str:
    """Return what a command wrote to `file`, up to `MAX_OUTPUT`."""
    file.seek(0)
    text = file.read(MAX_OUTPUT).decode(errors="replace")
    return f"{text}\n[cut after {MAX_OUTPUT} bytes]" if file.read(1) else text


def connect(channel: socket.socket) -> Connection:
    """Send one end of a new connection to the process that reads `channel`, and return the other end."""
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(channel, [b"connect"], [theirs.fileno()])
    return Connection(ours.detach())
