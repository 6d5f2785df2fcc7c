"""Make sure that nothing outlives its owner, however the owner ends.

When this process is killed, a shell removes what is left: folders, files, control groups, and half-started sandboxes
(bubblewrap has two processes, and the second waits forever if the first dies). We start the shell with the first such
thing, and it waits until we end. It is not our child: a Ray worker that ends because Ray's head died kills its children
first. `end_with_parent` is for child processes that need only a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

# A control group needs its own way: first everything in it is killed (0 means a process of another namespace).
_SCRIPT = r"""
trap '' HUP INT TERM
while IFS= read -r path; do set -- "$@" "$path"; done
end() {
    n=0
    until rmdir "$1" 2> /dev/null || [ ! -d "$1" ] || [ "$((n += 1))" -gt 500 ]; do
        pids=$(grep -vx 0 "$1/cgroup.procs") && kill -9 $pids
        sleep 0.01
    done
    rmdir "${1%/*}"
}
for path; do
    case "$path" in
    owner:*)
        while pids=$(grep -lzxF -- "${path#owner:}" /proc/[0-9]*/environ | cut -d / -f 3) && [ "$pids" ]; do
            kill -9 $pids
            sleep 0.01
        done ;;
    group:*) for group in "${path#group:}"*; do [ -d "$group" ] && end "$group"; done ;;
    *) rm -rf -- "$path" ;;
    esac
done 2> /dev/null
"""
# A program in the background has no standard input, unless it gets one from another descriptor.
_IN_BACKGROUND = f"exec 3<&0; {{ {_SCRIPT} }} <&3 3<&- &"
_lock = threading.Lock()
_channel: IO[bytes] | None = None
_told: dict[str, None] = {}
_MARK = "ARPO_VERL_OWNER"
_mark = secrets.token_hex(16)
"""The mark of this process and of no other, not even of a fork."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Send SIGTERM to this process when its parent ends; for `subprocess.Popen(preexec_fn=...)`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def marked_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment with a mark: whatever has the mark is killed when this process ends.

    Use it for programs that start others with an environment of their own, as bubblewrap does.
    """
    _tell(f"owner:{_MARK}={_mark}")
    return {**environ, _MARK: _mark}


def processes_with(variable: str) -> list[int]:
    """Return the running processes that have this `NAME=VALUE` in their environment."""
    word, found = variable.encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if word in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def remove_at_end(path: Path) -> None:
    """Remove a folder or a file when this process ends, however that happens.

    Raises:
        ValueError: its name has a line's end, behind which the shell would read the next path.
    """
    if "\n" in str(path):
        raise ValueError(f"a path to remove must have no line's end, got {str(path)!r}")
    _tell(os.path.abspath(path))


def remove_groups_at_end(prefix: Path) -> None:
    """Remove the control groups whose path begins with `prefix`, and their processes, when this process ends."""
    _tell(f"group:{prefix}")


def _tell(words: str) -> None:
    global _channel
    with _lock:
        if words in _told:
            return
        _told[words] = None
        try:
            if _channel is None:
                raise BrokenPipeError
            _channel.write(f"{words}\n".encode())
        except BrokenPipeError:  # there is no shell, or it was killed
            _channel = _start()
            _channel.write("".join(f"{line}\n" for line in _told).encode())


def _start() -> IO[bytes]:
    """Start the shell. Return its standard input, which ends with this process."""
    starter = subprocess.Popen(
        ["/bin/sh", "-c", _IN_BACKGROUND],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
        cwd="/",
        env={"PATH": f"{os.environ.get('PATH', '')}:{os.defpath}"},
    )
    starter.wait()
    assert starter.stdin is not None
    return starter.stdin


def _forget_after_fork() -> None:
    """Close the channel in a fork: the shell must wait only for its owner."""
    global _lock, _channel, _mark
    _lock, _mark = threading.Lock(), secrets.token_hex(16)
    if _channel is not None:
        _channel.close()
    _channel = None
    _told.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
