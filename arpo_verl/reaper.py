"""Nothing outlives its owner, however the owner ends.

A shell removes what another process must remove when this one is killed: folders, control groups, and sandboxes that
were only half made (bubblewrap has two processes, and the second one waits for ever once the first one died). We start
the shell with the first such thing; it waits until we end. It is no child of ours: a worker of Ray's that ends because
Ray's head died kills its children first. `end_with_parent` is for child processes that need no more than a signal.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO

# A control group is removed by its kind's way: whatever is in there is killed first, 0 being of another namespace.
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
        pids=$(grep -lzxF -- "${path#owner:}" /proc/[0-9]*/environ | cut -d / -f 3)
        [ "$pids" ] && kill -9 $pids ;;
    group:*) for group in "${path#group:}"*; do [ -d "$group" ] && end "$group"; done ;;
    *) rm -rf -- "$path" ;;
    esac
done 2> /dev/null
"""
# A program in the background has nothing on its standard input, unless it gets it from another descriptor.
_IN_BACKGROUND = f"exec 3<&0; {{ {_SCRIPT} }} <&3 3<&- &"
_lock = threading.Lock()
_channel: IO[bytes] | None = None
_told: dict[str, None] = {}
_MARK = "ARPO_VERL_OWNER"
_mark = secrets.token_hex(16)
"""Of this process, and of no other one: not of a fork."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Have SIGTERM sent to this process when its parent ends; for `subprocess.Popen(preexec_fn=...)`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def marked_environment() -> dict[str, str]:
    """This process's environment and a mark: whatever has the mark is killed when this process ends, however it ends.

    For programs that get an environment of their own for what they start, as bubblewrap does.
    """
    _tell(f"owner:{_MARK}={_mark}")
    return {**os.environ, _MARK: _mark}


def remove_folder_at_end(folder: Path) -> None:
    """Have `folder` removed when this process ends, however that happens."""
    _tell(os.path.abspath(folder))


def remove_groups_at_end(prefix: Path) -> None:
    """Have the control groups whose path begins with `prefix` removed when this process ends, and what is in them."""
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
        except BrokenPipeError:  # there is none, or it was killed
            _channel = _start()
            _channel.write("".join(f"{line}\n" for line in _told).encode())


def _start() -> IO[bytes]:
    """Start the shell. Returns its standard input, which ends with this process."""
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
    """The shell waits for the owner alone, so a fork must not hold its channel."""
    global _lock, _channel, _mark
    _lock, _mark = threading.Lock(), secrets.token_hex(16)
    if _channel is not None:
        _channel.close()
    _channel = None
    _told.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
