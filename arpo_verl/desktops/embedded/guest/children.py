"""Start and collect processes, for process 1, and know what became of those that a desktop needs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from . import layout
from .fork_server import close_all_but

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
outside: list[int] = []
"""Signals of `ENDING` that came from outside of the sandbox."""

running: dict[int, str] = {}
"""Processes of `layout.WATCHED` that run, by process id."""
ended: dict[str, int] = {}
"""Processes of `layout.WATCHED` that ended, with their status by `os.waitpid`."""


def collect() -> None:
    """Collect dead processes."""
    try:
        while (pair := os.waitpid(-1, os.WNOHANG))[0] != 0:
            if pair[0] in running:
                ended[running.pop(pair[0])] = pair[1]
    except ChildProcessError:
        pass


def kill_all() -> None:
    """Kill every other process of this process namespace and collect the dead."""
    running.clear()  # nobody asks how they end from now on
    ended.clear()
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # one pass of the kernel over all processes: a fork cannot slip through
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def watch_outside() -> None:
    """Block the signals that end a job and keep them for `why_down`; they do not end process 1 anyway."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def why_down() -> dict[str, str]:
    """Return what ended or stopped processes of `layout.WATCHED`: `signal 9`, `exit 1`, `stopped`.

    It returns nothing if someone outside of the sandbox sends such signals, as when a cluster takes a node back.
    """
    while (sent := signal.sigtimedwait(ENDING, 0)) is not None:
        # The kernel gives 0 for a sender that has no number in here. A program that queues a signal can write any
        # sender, but not a code of the kernel's.
        if sent.si_pid == 0 and sent.si_code >= 0:
            outside.append(sent.si_signo)
    if outside:
        return {}
    collect()
    down = {name: _how(status) for name, status in ended.items()}
    return down | {name: "stopped" for pid, name in running.items() if _state(pid) in ("T", "t")}


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit {code}"


def _state(pid: int) -> str:
    """Return the kernel's letter for a process's state."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def spawn(arguments: Sequence[str], pass_fd: int | None = None, **environment: str) -> int:
    """Start a program in its own session, with its output in a log file of its name; return the process id.

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
    pid = os.posix_spawnp(
        arguments[0],
        list(arguments),
        {**os.environ, **environment},
        file_actions=actions,
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT],
    )
    if os.path.basename(arguments[0]) in layout.WATCHED:
        running[pid] = os.path.basename(arguments[0])
    return pid


def fork(main: Callable[[], None], name: str, keep_fds: Sequence[int]) -> int:
    """Run `main` in a fork of this warm interpreter, which keeps no other files than `keep_fds`.

    The fork takes over nothing of process 1's: not its channel to the host, not its signal handlers.
    """
    pid = os.fork()
    if pid:
        if name in layout.WATCHED:
            running[pid] = name
        return pid
    status = 1
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _redirect(os.path.join(layout.LOG_DIR, name))
        close_all_but(keep_fds)
        main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):  # a command may have put anything there
            sys.stderr.flush()
        os._exit(status)


def _redirect(log: str) -> None:
    """Take standard input from nowhere and write output to `log`."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:  # the desktop's programs may have removed the folder, or put a pipe there
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
    except OSError:
        out = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


def log_tail(name: str, lines: int = 5) -> str:
    """Return the last lines of a program's log, for a message."""
    try:
        with open(os.path.join(layout.LOG_DIR, name), errors="replace") as log:
            return " | ".join(line.strip() for line in log.readlines()[-lines:])
    except OSError:
        return "no log"
