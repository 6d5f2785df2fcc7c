"""Programs of the user's session, started and run to their end."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import IO, Any

from . import layout

Command = str | list[str]


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
        return {"output": _text(output), "error": _text(error), "returncode": returncode}


def start(command: Command, shell: bool, **options: Any) -> subprocess.Popen[bytes]:
    """Start a program in the user's session, as a terminal of its own would."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": None, **options}
    options["cwd"] = options["cwd"] or layout.HOME
    return subprocess.Popen(command, shell=shell, stdin=subprocess.DEVNULL, start_new_session=True, **options)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
