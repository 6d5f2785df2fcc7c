"""A harness that is a command: a program of its own, which asks the episode's endpoint and acts on its desktop.

The program is yours, but a model's replies lead it, so it runs in a sandbox: as an unprivileged user (where we are
root, as one that nobody else is), this machine's files read-only, its own memory to write to, bounded memory,
processes and output, and of the network its endpoint and its desktop alone. All that it started ends with it, and it
with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from arpo_verl.agent.harness.command_start import HOST
from arpo_verl.desktops.embedded import cgroups, seccomp, users
from arpo_verl.desktops.embedded.process import in_memory, start_sandbox
from arpo_verl.desktops.osworld.verdict import messages
from arpo_verl.errors import ConfigError, HarnessError
from arpo_verl.lib import bubblewrap
from arpo_verl.lib.bubblewrap import PACKAGE, Profile, python_folders
from arpo_verl.lib.relay import Relay, to_address
from arpo_verl.lib.untrusted import printable_lines

START_TIMEOUT_S = 180.0
"""Until the command begins: 0.15 s on an idle machine, a minute on one with ten times the work that it can do."""
END_TIMEOUT_S = 5.0
PIDS = 512
"""Processes and threads of a command. A Python with its libraries has some tens."""
LOOK_S = 1.0
"""How often we look at its memory where no control group bounds that. Two looks in a row must find too much: a program
that starts another is there twice for a moment. Who passes memory on faster than that is not seen."""
SCRATCH = "/tmp"  # noqa: S108  of the command's own memory
HOME = f"{SCRATCH}/home"
# /run has sockets of this machine's services, which answer whoever may connect: system bus, log, Docker.
_OWN_MEMORY = (SCRATCH, "/var/tmp", "/dev/shm", "/run")  # noqa: S108
_NAMES = "/etc/resolv.conf"
"""Often a link into /run; needed where the command has the network."""
_TAIL_BYTES = 8000
_TAIL_CHARACTERS = 2000
_SIGNAL = 128
"""A shell, and bubblewrap, say a program's death by a signal as an exit status above this."""
_CHUNK_BYTES = 1 << 16
_START = (
    "import sys; sys.path[:0] = [{place!r}]; from arpo_verl.agent.harness.command_start import main; main({channel})"
)
# It enters the control groups before it becomes bubblewrap, so that nothing of it is ever outside.
# There the kernel is told to kill it before us where memory runs out: what root sets, it cannot lower.
_ENTER = """
[ "$(cat /proc/self/oom_score_adj)" -ge 500 ] || echo 500 > /proc/self/oom_score_adj
while [ "$1" != -- ]; do echo 0 > "$1"; shift; done
shift
exec "$@"
"""


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended."""

    returncode: int
    """Its exit status; negative, the signal that killed it."""
    reason: str
    """Why we ended it, or why the kernel did; empty where it ended by itself."""
    log_tail: str
    """The end of what it said, at most 2,000 printable characters."""


async def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path | None,
    memory_mb: int,
    log_mb: float,
    ports: Collection[int] = (),
    network: bool = False,
    pids: int = PIDS,
) -> CommandEnd:
    """Run a command to its end. Cancelled, it kills the command with all that it started, and waits for that.

    Args:
        command: the program and its arguments; no shell reads them.
        environment: all of it, but for PATH, HOME and the like where they are not in it.
        log: the file that gets what the command says; None keeps the end alone.
        memory_mb: what it may take, files in its own memory included. Where this machine offers no control groups,
            we look each second what its processes have, and such files come to that.
        log_mb: how much it may say; more ends it.
        ports: this machine's loopback ports that it reaches, by the same numbers.
        network: whether it reaches all that this process reaches; else `ports` alone.
        pids: processes and threads that it may have at once.

    Raises:
        ConfigError: there is no such program, or this machine does not let us make its sandbox.
        HarnessError: it did not begin.
    """
    sandboxed = _Command(
        list(command), dict(environment), log, memory_mb, int(log_mb * 1e6), list(ports), network, pids
    )
    done: Future[CommandEnd] = Future()

    def run() -> None:
        try:
            done.set_result(sandboxed.run())
        except BaseException as error:
            done.set_exception(error)

    # A thread of its own: the loop's pool has fewer than there are episodes. It ends with the command.
    threading.Thread(target=run, name="harness-command", daemon=True).start()
    waiting = asyncio.wrap_future(done)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        sandboxed.stop()
        await asyncio.wait([waiting])
        raise


@dataclass
class _Command:
    """One run of a command, made and ended in one thread."""

    command: list[str]
    environment: dict[str, str]
    log: Path | None
    memory_mb: int
    log_bytes: int
    ports: list[int]
    network: bool
    pids: int

    def __post_init__(self) -> None:
        self._stopped, self._stop = socket.socketpair()
        self._tail = b""
        self._said = 0

    def stop(self) -> None:
        """End it. From any thread."""
        with contextlib.suppress(OSError):
            self._stop.send(b".")

    def run(self) -> CommandEnd:
        """See `run_command`. Blocks."""
        with contextlib.ExitStack() as held:
            held.callback(self._stopped.close)
            held.callback(self._stop.close)
            user = users.claim_user()
            if user is not None:
                held.callback(user.close)
            group = cgroups.Cgroup(cgroups.Limits(self.memory_mb, pids=self.pids))
            held.callback(group.close)  # kills what is left
            read, write = os.pipe2(os.O_CLOEXEC)
            said = held.enter_context(open(read, "rb", buffering=0))
            ours, theirs = socket.socketpair()
            held.enter_context(ours)
            with open(write, "wb", buffering=0) as output, theirs, contextlib.ExitStack() as inherited:
                passed, seccomp_fd = [theirs.fileno()], None
                if seccomp.is_supported():  # bubblewrap's own process 1 must have it too: the command may trace that
                    code = seccomp.filter_program(maps_memory=cgroups.MEMORY not in group.controllers)
                    seccomp_fd = in_memory("filter", code)
                    inherited.callback(os.close, seccomp_fd)
                    passed.append(seccomp_fd)
                process = start_sandbox(self._words(passed[0], user, group, seccomp_fd), passed, output)
            held.callback(_end, process, said)
            self._begin(ours, process, said, user, group, held)
            with open(os.devnull if self.log is None else self.log, "wb") as file:
                reason = self._follow(process, said, file, cgroups.MEMORY in group.controllers)
                _end(process, said)
            if not reason and process.returncode and group.oom_kills():
                reason = self._no_memory()
            return CommandEnd(_returncode(process.returncode), reason, self._last_words())

    def _words(
        self, channel: int, user: users.UserClaim | None, group: cgroups.Cgroup, seccomp_fd: int | None
    ) -> list[str]:
        if shutil.which("bwrap") is None:
            raise ConfigError(
                "a harness that is a command runs in a sandbox, which needs bubblewrap; "
                "run: apt-get install -y --no-install-recommends bubblewrap"
            )
        start = _START.format(place=str(PACKAGE.parent), channel=channel)
        profile = Profile(
            self._mounts(user is not None),
            own_users=user is None,
            capabilities=() if user is None else ("CAP_SETUID", "CAP_SETGID"),
            network=self.network,
            seccomp_fd=seccomp_fd,
            folder=os.getcwd(),
        )
        words = bubblewrap.command(profile, [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", start])
        return ["/bin/sh", "-ec", _ENTER, "sh", *map(str, group.doors), "--", *words]

    def _mounts(self, is_other_user: bool) -> list[str]:
        """This machine's files to read, and memory to write to. What the command needs stays visible beneath that."""
        needed = [*python_folders([str(PACKAGE.parent)]), *self._own_folders()]
        closed = {parent for path in needed for parent in _closed_parents(path)} if is_other_user else set()
        words = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", *bubblewrap.no_terminals()]
        for path in _OWN_MEMORY:
            words += bubblewrap.memory(path, "1777", self.memory_mb << 20)
        for path in sorted(closed, key=len):
            words += bubblewrap.memory(path, "0755")
        hidden = [*_OWN_MEMORY, *closed]
        needed += [os.path.realpath(_NAMES)] if self.network and os.path.exists(_NAMES) else []
        shown = [path for path in needed if any(Path(path).is_relative_to(place) for place in hidden)]
        shown = [path for path in shown if path not in hidden]
        above = bubblewrap.parents(shown, ())
        words += bubblewrap.folders(p for p in above if any(Path(p).is_relative_to(h) and p != h for h in hidden))
        words += [word for path in sorted(shown, key=len) for word in ("--ro-bind", path, path)]
        words += [word for path in sorted(closed, key=len) for word in ("--remount-ro", path)]
        # The tasks' evaluators and their expert are no business of a policy's.
        return [*words, *bubblewrap.sealed(str(PACKAGE / "tasks"))]

    def _own_folders(self) -> list[str]:
        """Where the command's own files are: the working folder, what its words and PYTHONPATH name."""
        words = [*self.command, *self.environment.get("PYTHONPATH", "").split(os.pathsep)]
        named = {os.path.abspath(word) for word in words if os.path.sep in word and os.path.exists(word)}
        named |= {os.path.realpath(word) for word in named}
        folders = {os.getcwd(), *(path if os.path.isdir(path) else os.path.dirname(path) for path in named)}
        folders |= {os.path.dirname(path) for path in folders if os.path.basename(path) == "bin"}
        return sorted(folders - {os.path.sep}, key=len)

    def _begin(
        self,
        channel: socket.socket,
        process: subprocess.Popen[bytes],
        said: IO[bytes],
        user: users.UserClaim | None,
        group: cgroups.Cgroup,
        held: contextlib.ExitStack,
    ) -> None:
        """Hand over the request, take the ports, and see the command begin.

        Raises:
            ConfigError: it cannot: no other episode's will.
            HarnessError: it did not, and nothing says why.
        """
        request: dict[str, Any] = {
            "command": self.command,
            "environment": {**_defaults(), **self.environment},
            "ports": [] if self.network else self.ports,
            "user_id": None if user is None else user.user_id,
            "pids": self.pids,
            "data_bytes": None if cgroups.MEMORY in group.controllers else self.memory_mb << 20,
            "home": HOME,
        }
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            messages.send(channel, request)
            answer = messages.receive(channel, messages.MAX_FRAME_BYTES, deadline) or {}
            if "ports" in answer and answer["ports"]:
                channel.settimeout(START_TIMEOUT_S)
                listeners = messages.receive_descriptors(channel, len(request["ports"]))
                ways = zip(listeners, request["ports"], strict=True)
                held.callback(Relay([(socket.socket(fileno=fd), to_address(HOST, port)) for fd, port in ways]).close)
            if "ports" in answer:
                answer = messages.receive(channel, messages.MAX_FRAME_BYTES, deadline) or {"begun": True}
        except (OSError, messages.BadMessage) as error:  # it ended, or took too long
            answer = {"ended": str(error)}
        if "begun" not in answer:
            _end(process, said)
            self._keep(said.read(_CHUNK_BYTES) or b"")
            raise _no_start(self.command, answer.get("error", ""), self._last_words())

    def _no_memory(self) -> str:
        return f"it used up its memory, {self.memory_mb} MB"

    def _follow(self, process: subprocess.Popen[bytes], said: IO[bytes], file: IO[bytes], is_bounded: bool) -> str:
        """Keep what the command says until it ends, or must. Returns why it must.

        `is_bounded`: the kernel bounds its memory; else this does.
        """
        ended, look_at, looks_over = _end_of(process), float("inf") if is_bounded else 0.0, 0
        poller = select.poll()
        for source in (said, self._stopped, *(() if ended is None else (ended,))):
            poller.register(source, select.POLLIN)
        try:
            while True:
                if time.monotonic() >= look_at:
                    looks_over = looks_over + 1 if _mapped_bytes(process.pid) > self.memory_mb << 20 else 0
                    if looks_over == 2:
                        return self._no_memory()
                    look_at = time.monotonic() + LOOK_S
                wait_ms = None if is_bounded else LOOK_S * 1000
                ready = {descriptor for descriptor, _ in poller.poll(wait_ms if ended is not None else 0)}
                if self._stopped.fileno() in ready:
                    return "it was stopped"
                if said.fileno() in ready:
                    chunk = said.read(_CHUNK_BYTES) or b""
                    file.write(chunk[: max(0, self.log_bytes - self._said)])
                    self._keep(chunk)
                    if self._said > self.log_bytes:
                        return f"it said more than {self.log_bytes / 1e6:g} MB"
                    if chunk:
                        continue
                    poller.unregister(said)  # nobody has the other end any more
                if ended is None or ended in ready:
                    return ""
        finally:
            if ended is not None:
                os.close(ended)

    def _keep(self, chunk: bytes) -> None:
        self._said += len(chunk)
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]

    def _last_words(self) -> str:
        return printable_lines(self._tail.decode(errors="replace")).strip()[-_TAIL_CHARACTERS:]


def _defaults() -> dict[str, str]:
    """What a program expects of its environment; nothing of this process's own."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "USER": "harness",
        "LOGNAME": "harness",
        "HOME": HOME,
        "TMPDIR": SCRATCH,
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": f"{HOST},localhost",
        "no_proxy": f"{HOST},localhost",
    }


def _closed_parents(path: str) -> list[str]:
    """The folders above `path` that other users may not enter."""
    return [str(parent) for parent in Path(path).parents if not parent.stat().st_mode & 0o001]


def _no_start(command: Sequence[str], error: str, words: str) -> ConfigError | HarnessError:
    if error:
        return ConfigError(f"gui_agent.harness must name a program that can be run here, got {command[0]}: {error}")
    if "bwrap" in words or "unshare" in words:
        return ConfigError(f"the harness's sandbox did not start: {words}; {bubblewrap.USER_NAMESPACES}")
    return HarnessError(f"the harness's command did not begin within {START_TIMEOUT_S:g} s: {words or 'no word of it'}")


def _end_of(process: subprocess.Popen[bytes]) -> int | None:
    """A descriptor that is readable once it has ended; None where it has, and was collected."""
    try:
        return os.pidfd_open(process.pid) if process.poll() is None else None
    except ProcessLookupError:
        return None


def _mapped_bytes(pid: int) -> int:
    """The memory of a process and of all that it started; what some of them share is counted once."""
    own = others = 0
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended; the first may before the others
            own = own or _own_bytes(thread)
            others += sum(map(_mapped_bytes, map(int, (thread / "children").read_text().split())))
    return own + others


def _own_bytes(thread: Path) -> int:
    try:
        lines = (thread / "smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    except PermissionError:  # it hides: then all that it shares counts
        return int((thread / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _returncode(status: int) -> int:
    return _SIGNAL - status if status > _SIGNAL else status


def _end(process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    """Kill it, and wait until the last of it is gone, which ends the pipe. Safe to call twice."""
    process.kill()
    process.wait()
    poller = select.poll()
    poller.register(said, select.POLLHUP)
    poller.poll(END_TIMEOUT_S * 1000)
