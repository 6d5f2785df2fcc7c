"""Starting processes from process 1, which collects them itself."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from . import layout


def spawn(arguments: Sequence[str], pass_fd: int | None = None, **environment: str) -> int:
    """Start a program in a session of its own, its output in a log file named after it. Returns the process id.

    `environment` is added to this process's own.
    """
    log = os.path.join(layout.LOG_DIR, os.path.basename(arguments[0]))
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    if pass_fd is not None:
        actions.append((os.POSIX_SPAWN_DUP2, pass_fd, pass_fd))  # clears close-on-exec
    return os.posix_spawnp(
        arguments[0],
        list(arguments),
        {**os.environ, **environment},
        file_actions=actions,
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT],
    )


def fork(main: Callable[[], None], name: str, keep_fds: Sequence[int]) -> int:
    """Run `main` in a fork of this warm interpreter that has lost every other file but `keep_fds`.

    The fork takes over nothing of process 1's: not its channel to the host, not its signal handlers.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _redirect(os.path.join(layout.LOG_DIR, name))
        _close_all_but(keep_fds)
        main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _redirect(log: str) -> None:
    """Nothing on standard input; output to `log`."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


def _close_all_but(keep_fds: Sequence[int]) -> None:
    low = 3
    for fd in sorted(keep_fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def log_tail(name: str, lines: int = 5) -> str:
    """The last lines of a program's log, for a message."""
    try:
        with open(os.path.join(layout.LOG_DIR, name), errors="replace") as log:
            return " | ".join(line.strip() for line in log.readlines()[-lines:])
    except OSError:
        return "no log"
