"""A reward program runs on what the policy's programs left, after they are dead.

Process 1, which they cannot reach, kills them all at once. Then the mock web applications answer again, with their old
sessions, and the program runs alone. It was never in the desktop before.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from . import layout

POLL_MS = 10
HANDOFF = "/tmp"
MAX_HANDOFF = 4096


def handoff_files() -> dict[str, bytes]:
    """Return what the set-up left for the reward program: small files of `/tmp` with `sid` in their name."""
    found = {}
    for entry in os.scandir(HANDOFF):
        if "sid" in entry.name and entry.is_file(follow_symlinks=False) and entry.stat().st_size <= MAX_HANDOFF:
            with open(entry.path, "rb") as file:
                found[entry.path] = file.read(MAX_HANDOFF)
    return found


def make_room_for_logs() -> None:
    """Make an empty folder for logs, whatever is in its place: writing to a pipe of the policy's would block.

    Raises:
        OSError: there is no room, or the old folder cannot be removed.
    """
    if os.path.isdir(layout.LOG_DIR) and not os.path.islink(layout.LOG_DIR):
        shutil.rmtree(layout.LOG_DIR)
    elif os.path.lexists(layout.LOG_DIR):
        os.unlink(layout.LOG_DIR)
    os.mkdir(layout.LOG_DIR, 0o700)


def restore(files: Mapping[str, bytes]) -> None:
    """Put the files back as they were, whatever is in their place.

    Raises:
        OSError: there is no room, or a folder that is not empty is in a file's place.
    """
    for path, content in files.items():
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        elif os.path.lexists(path):
            os.unlink(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb") as file:
            file.write(content)


def run(program: int, stdout: int, stderr: int, timeout_s: float, owner: int) -> dict[str, Any]:
    """Run a Python program alone, isolated from the home's packages and settings.

    Args:
        program: descriptor of its source.
        stdout, stderr: descriptors for its output.
        owner: descriptor of the host's channel; when that ends, the wait ends.

    Returns:
        `returncode`; None if the program did not end in time and was killed.
    """
    settings = {name: f"/nonexistent/{name}" for name in layout.environment() if name.startswith("XDG_")}
    environment = {**layout.environment(), **settings, "PYTHONNOUSERSITE": "1"}
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-B", "-X", "utf8", "-"],
        environment,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, program, 0),
            (os.POSIX_SPAWN_DUP2, stdout, 1),
            (os.POSIX_SPAWN_DUP2, stderr, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT],
    )
    poller = select.poll()
    poller.register(owner, 0)  # reports only its end
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not poller.poll(POLL_MS):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return {"returncode": os.waitstatus_to_exitcode(status)}
    return {"returncode": None}
