"""A running sandbox as the host sees it: started, booted, talked to, ended."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from arpo_verl.desktop import cgroups, relay, sandbox, template, users, web_apps
from arpo_verl.desktop.guest import children
from arpo_verl.desktop.process import ProcessHandle
from arpo_verl.errors import DesktopBootError
from arpo_verl.types import Size

logger = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 5.0
_MAX_PACKET = 65536
_ANSWER_TIMEOUT_S = 5.0
_SLICE_S = _DYING_S = 0.5
_ON_REQUEST = ("stopped", "exit 0", *(f"signal {number}" for number in (1, 2, 3, 9, 15, 19, 20)))
"""Ends that somebody asked for: by SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, and a clean exit. A crash is none."""

MAX_OUTPUT = 1 << 20
"""Bytes of what a reward program says that are read."""


@dataclass(frozen=True)
class RewardProgramRun:
    """What a reward program said, after it ran alone in its desktop."""

    stdout: bytes
    stderr: bytes
    """Both at most one byte longer than `MAX_OUTPUT`."""
    returncode: int | None
    """None where it did not end in time."""
    spoiled: str = ""
    """Why it could not run: what the desktop's programs left there."""


@dataclass(frozen=True)
class Ended:
    """The X server or the guest server ended as somebody asked, while the sandbox lives: no crash."""

    cause: str
    is_proof: bool
    """Whether only programs of the desktop can have asked: they ended everything that they may at once, which spares
    process 1 from nobody else, or took more memory than the desktop has. One process alone a host's owner ends too."""


def proof_of(ended: Ended | None) -> str:
    """How the desktop's own programs ended it; empty where that is not proved."""
    return ended.cause if ended is not None and ended.is_proof else ""


class GuestProcess:
    """One sandbox. It ends when this object, or the process that holds it, does, however that happens."""

    def __init__(self, extra_read_only: Sequence[str] = (), limits: cgroups.Limits | None = None):
        """Start it; nothing is booted yet.

        Args:
            extra_read_only: further folders of this machine that its programs may read.
            limits: what they may use up; None: the defaults.

        Raises:
            MissingDependencyError: a program or a Python package is not installed.
            DesktopBootError: it does not start.
        """
        limits = limits or cgroups.Limits()
        self._template = template.template_for(extra_read_only)
        self._log = tempfile.TemporaryFile()
        self._out_of_memory_kills = _out_of_memory_kills()
        self._events_at_end: cgroups.LimitEvents | None = None
        self._met_at_end, self._words_at_end = 0, ""
        self._control, control = _pair()
        self._connections, connections = _pair()
        self._connections.setblocking(False)
        with control, connections:
            self._process = self._template.fork(control, connections, self._log)
        self._user = users.claim_user()
        self._cgroup = cgroups.Cgroup(limits)
        channels = (self._control, self._connections, self._log)
        self._finalizer = weakref.finalize(self, _end, self._process, channels, self._cgroup, self._user)
        _alive.add(self)
        try:
            self._enter(limits)
        except BaseException:
            self.close()
            raise
        self._begin_counting()
        relay.when_readable(self._process.descriptor, _weak_bury(self))

    def boot(self, size: Size, command_timeout_s: float, timeout_s: float) -> float:
        """Start the desktop in it, once. Returns the seconds that the guest took.

        Raises:
            DesktopBootError: it did not come up; this sandbox is of no further use.
        """
        command = {"width": size.width, "height": size.height, "command_timeout_s": command_timeout_s}
        self._out_of_memory_kills = _out_of_memory_kills()
        booted_s = float(self._ask("boot", command, timeout_s)[0]["boot"])
        self._begin_counting()
        return booted_s

    def connect(self, port: int, fd: int) -> None:
        """Hand the descriptor `fd` to the guest as a connection to its `port`.

        Raises:
            OSError: the guest is gone or does not keep up.
        """
        relay.pass_descriptor(self._connections, b"%d" % port, fd)

    def serve_apps(self, archive: bytes, timeout_s: float) -> None:
        """Serve mock web applications on the desktop's loopback, see `web_apps.pack`.

        Raises:
            DesktopBootError: they do not start.
        """
        self._ask("serve_apps", {}, timeout_s, archive)

    def seal(self) -> None:
        """Say that a task's set-up is over: what it gave the applications as initial stays so.

        Raises:
            DesktopBootError: process 1 does not answer.
        """
        self._ask("seal", {}, _ANSWER_TIMEOUT_S)

    def run_reward_program(self, program: bytes, timeout_s: float) -> RewardProgramRun:
        """Kill all that runs in the desktop, then run a Python program in it, alone. Nothing runs there afterwards.

        Raises:
            DesktopBootError: process 1 does not answer.
        """
        patience_s = timeout_s + template.START_TIMEOUT_S
        message, fds = self._ask("run_reward_program", {"timeout_s": timeout_s}, patience_s, program)
        try:
            outputs = [os.pread(fd, MAX_OUTPUT + 1, 0) for fd in fds]
        finally:
            for fd in fds:
                os.close(fd)
        answer = message["run_reward_program"]
        return RewardProgramRun(outputs[0], outputs[1], answer.get("returncode"), answer.get("spoiled", ""))

    def is_alive(self) -> bool:
        """Whether the sandbox still runs. Its programs may be dead all the same."""
        return not self._process.has_ended()

    def why_down(self) -> Ended | None:
        """What ended or stopped the X server or the guest server, or the sandbox; None where no word of it can be
        trusted: they run, crashed, this host is out of memory, or signals came to process 1 from outside, as when a
        cluster takes a node back. Of a dead sandbox, whether its own limit to memory killed what process 1 was.
        """
        if not self.is_alive():
            return Ended("all of its memory was used up", True) if self._killed_by_own_limit() else None
        try:
            down: dict[str, str] = self._ask("why_down", {}, _ANSWER_TIMEOUT_S)[0]["why_down"]
        except DesktopBootError as error:
            logger.debug("the desktop's process 1 does not answer: %s", error)
            return None
        found = {name: end for name, end in down.items() if name in children.NEEDED and end in _ON_REQUEST}
        by_own_limit = self._killed_by_own_limit()
        if by_own_limit is None or not found:
            return None
        all_at_once = len(down) == len(children.WATCHED) and len(set(down.values())) == 1
        # Who kills a desktop from outside, its children first, kills process 1 in the same breath.
        all_at_once = all_at_once and not self._process.has_ended(_DYING_S)
        return Ended("; ".join(f"{name}: {end}" for name, end in found.items()), all_at_once or by_own_limit)

    def _killed_by_own_limit(self) -> bool | None:
        """Whether all that was killed on this host for want of memory, since the boot, was killed by the desktop's own
        limit; None where something else was."""
        own_kills, before, now = self.limit_events().oom_kills, self._out_of_memory_kills, _out_of_memory_kills()
        if before is None or now is None or now - before > own_kills:
            return None
        return own_kills > 0

    def was_hit_by_host(self) -> bool:
        """Whether a program of it was killed for want of memory that was not its own limit's: this host's, or of a
        group above."""
        oom_kills, is_met = self._oom_kills()
        return oom_kills > 0 and not is_met

    def kill(self) -> None:
        """End it without waiting. `close` it all the same."""
        self._process.kill()

    def close(self) -> None:
        """End it and wait until it is gone. Safe to call twice."""
        self._finalizer()

    def limit_events(self) -> cgroups.LimitEvents:
        """How often the desktop's own limits were met: what its programs did to themselves."""
        since, now = self._events_at_boot, self._events_at_end or self._cgroup.events()
        oom_kills, is_met = self._oom_kills()
        return cgroups.LimitEvents(oom_kills * is_met, now.pids_refused - since.pids_refused)

    def _oom_kills(self) -> tuple[int, bool]:
        """How many of its programs were killed for want of memory since the boot, and whether it met its own limit."""
        now = self._events_at_end or self._cgroup.events()
        is_met = (self._met_at_end or self._cgroup.memory_met()) > self._met_at_boot
        return now.oom_kills - self._events_at_boot.oom_kills, is_met

    def _bury(self) -> None:
        """Give back what it held, since it ended by itself."""
        if self._finalizer.alive:
            self._events_at_end, self._met_at_end = self._cgroup.events(), self._cgroup.memory_met()
            self._words_at_end = self._last_words()
            self.close()

    def _last_words(self) -> str:
        self._process.has_ended(_DYING_S)
        return self._words_at_end if self._log.closed else template.tail(self._log)

    def _begin_counting(self) -> None:
        self._cgroup.forget_peak()
        self._events_at_boot, self._met_at_boot = self._cgroup.events(), self._cgroup.memory_met()

    def _enter(self, limits: cgroups.Limits) -> None:
        """Have its process 1 bounded, and let it leave the template."""
        user_id = self._user.user_id if self._user else None
        is_bounded = cgroups.MEMORY in self._cgroup.controllers
        # One more than the group's, which counts how often it is met, and so must be met first.
        pids = limits.pids + (cgroups.PIDS in self._cgroup.controllers)
        words = {
            "user_id": user_id,
            "pids": pids,
            "data_bytes": None if is_bounded else limits.memory_mib * cgroups.MIB,
            "files": {} if user_id is None else sandbox.identity(user_id),
        }
        try:
            if not (pid := self._process.pid):  # 0 would be this process
                raise ProcessLookupError("it ended at once")
            self._cgroup.admit(pid)
            self._control.send(json.dumps(words).encode())
        except OSError as error:
            raise DesktopBootError(f"the desktop's sandbox is gone ({error}){self._last_words()}") from error
        self._receive(template.START_TIMEOUT_S)

    def _ask(
        self, name: str, arguments: dict[str, Any], timeout_s: float, content: bytes | None = None
    ) -> tuple[dict[str, Any], list[int]]:
        """Process 1's answer to a command, and the files that came with it.

        Args:
            content: goes with the command, as a file.

        Raises:
            DesktopBootError: it does not answer, or says that it could not.
        """
        fd = None if content is None else web_apps.in_memory(name, content)
        try:
            socket.send_fds(self._control, [json.dumps({name: arguments}).encode()], [] if fd is None else [fd])
            message, fds = self._receive(timeout_s)
            while name not in message:
                logger.debug("a late answer of process 1's: %s", message)
                for late in fds:
                    os.close(late)
                message, fds = self._receive(timeout_s)
            return message, fds
        except (OSError, ValueError) as error:  # it ended before it read this, or was closed meanwhile
            raise DesktopBootError(f"the desktop's sandbox is gone ({error}){self._last_words()}") from error
        finally:
            if fd is not None:
                os.close(fd)

    def _receive(self, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        deadline = time.monotonic() + timeout_s
        # In slices: another thread may close the channel meanwhile.
        while not _is_readable(self._control, min(_SLICE_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise DesktopBootError(f"the desktop did not answer within {timeout_s:g} s{self._last_words()}")
        packet, fds, _, _ = socket.recv_fds(self._control, _MAX_PACKET, 2)
        if not packet:
            raise DesktopBootError(f"the desktop's sandbox ended{self._last_words()}")
        message: dict[str, Any] = json.loads(packet)
        if "error" in message:
            for fd in fds:
                os.close(fd)
            raise DesktopBootError(f"the desktop's process 1 failed: {message['error']}")
        return message, fds


def _is_readable(channel: socket.socket, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _out_of_memory_kills() -> int | None:
    """How many processes this host's kernel has killed for want of memory; None where it does not say."""
    try:
        with open("/proc/vmstat") as counters:
            return next((int(line.split()[1]) for line in counters if line.startswith("oom_kill ")), None)
    except OSError:
        return None


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _end(
    process: ProcessHandle,
    channels: Iterable[IO[bytes] | socket.socket],
    cgroup: cgroups.Cgroup,
    user: users.UserClaim | None,
) -> None:
    """The end of process 1 is that of everything in the sandbox."""
    process.kill()
    if not process.has_ended(EXIT_TIMEOUT_S):
        logger.warning("a desktop's sandbox (process %d) did not end within %g s", process.pid, EXIT_TIMEOUT_S)
    for channel in channels:
        channel.close()
    cgroup.close()
    if user is not None:
        user.close()


def _weak_bury(guest: GuestProcess) -> Callable[[], None]:
    """`guest._bury`, for a thread that would keep a forgotten guest alive."""
    bury = weakref.WeakMethod(guest._bury)

    def call() -> None:
        if (method := bury()) is not None:
            method()

    return call


_alive: weakref.WeakSet[GuestProcess] = weakref.WeakSet()


def _forget_after_fork() -> None:
    """A fork of the owner must not keep the desktops alive by holding the other ends of their channels."""
    for guest in list(_alive):
        guest._finalizer.detach()
        guest._control.close()
        guest._connections.close()
        guest._cgroup.forget()
        if guest._user is not None:
            guest._user.close()


os.register_at_fork(after_in_child=_forget_after_fork)
