"""Programs of the user's session, started and run to their end."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import IO, Any

from . import layout

Command = str | list[str]
MAX_OUTPUT = 8 << 20
"""Bytes of a command's output that are returned; the most that it can write is a file's limit."""


class CommandTimeout(Exception):
    """A command took longer than it may; it was killed."""


def run(
    command: Command, shell: bool, timeout_s: float, cwd: str | None = None, merge_errors: bool = False
) -> dict[str, Any]:
    """Run a program to its end. A child that it leaves in the background does not keep us waiting.

    `merge_errors` writes standard error into `output`, in the order in which it came.

    Raises:
        CommandTimeout: it did not end in time, and was killed with its children.
        OSError: it cannot be started.
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
    """Start a program in the user's session, as a terminal of its own would."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": None, **options}
    options["cwd"] = options["cwd"] or layout.HOME
    return subprocess.Popen(command, shell=shell, stdin=subprocess.DEVNULL, start_new_session=True, **options)


def text_of(file: IO[bytes]) -> str:
    """What a command wrote to `file`, up to `MAX_OUTPUT`."""
    file.seek(0)
    text = file.read(MAX_OUTPUT).decode(errors="replace")
    return f"{text}\n[cut after {MAX_OUTPUT} bytes]" if file.read(1) else text
