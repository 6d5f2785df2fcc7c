"""The host's side of a running sandbox: it starts, boots, commands and ends it."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import tempfile
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import IO, Any

from arpo_verl.desktops.embedded import cgroups, fork_server, sandbox, users
from arpo_verl.desktops.embedded.guest import layout
from arpo_verl.desktops.embedded.process import ProcessHandle, in_memory, tail
from arpo_verl.desktops.machine_provider import MAX_OUTPUT, Ended, RewardProgramRun
from arpo_verl.errors import DesktopBootError
from arpo_verl.types import Size

logger = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 5.0
_MAX_PACKET = 65536
ANSWER_TIMEOUT_S = 5.0
_SLICE_S = _DYING_S = 0.5
_ON_REQUEST = ("stopped", "exit 0", *(f"signal {number}" for number in (1, 2, 3, 9, 15, 19, 20)))
"""Ends that someone asked for: by SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, or a clean exit; none is a crash."""


class GuestProcess:
    """One sandbox. It ends with this object, or with the process that holds it, in any case."""

    def __init__(self, extra_read_only: Sequence[str] = (), limits: cgroups.Limits = cgroups.DEFAULTS):
        """Start the sandbox, without booting a desktop.

        Args:
            extra_read_only: further folders of this machine that its programs may read.
            limits: the limits of its programs.

        Raises:
            MissingDependencyError: a program or a Python package is not installed.
            DesktopBootError: it does not start.
        """
        self._template = sandbox.template_for(extra_read_only)
        self._log = tempfile.TemporaryFile()
        self._out_of_memory_kills = _out_of_memory_kills()
        self._control, control = _pair()
        self._connections, connections = _pair()
        self._connections.setblocking(False)
        with control, connections:
            descriptors = control.fileno(), connections.fileno(), self._log.fileno()
            self._process = ProcessHandle(self._template.fork(descriptors))
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

    def boot(self, size: Size, command_timeout_s: float, timeout_s: float) -> None:
        """Start the desktop in it, once.

        Raises:
            DesktopBootError: it did not start; close this sandbox.
        """
        command = {"width": size.width, "height": size.height, "command_timeout_s": command_timeout_s}
        self._out_of_memory_kills = _out_of_memory_kills()
        self.ask("boot", command, timeout_s)
        self._begin_counting()

    def connect(self, port: int, fd: int) -> None:
        """Pass the descriptor `fd` to the guest as a connection to its `port`.

        Raises:
            OSError: the guest is gone or does not keep up.
        """
        socket.send_fds(self._connections, [b"%d" % port], [fd])

    def ask(
        self, name: str, arguments: dict[str, Any], timeout_s: float, content: bytes | None = None
    ) -> tuple[dict[str, Any], list[int]]:
        """Return process 1's answer to a command, and the files that came with it.

        Args:
            content: sent with the command, as a file.

        Raises:
            DesktopBootError: it does not answer, or reports a failure.
        """
        fd = None if content is None else in_memory(name, content)
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

    def run_reward_program(self, program: bytes, timeout_s: float) -> RewardProgramRun:
        """Kill all programs of the desktop, then run a Python program in it, alone. Nothing runs there afterwards.

        Raises:
            DesktopBootError: process 1 does not answer.
        """
        patience_s = timeout_s + fork_server.FORK_TIMEOUT_S
        message, fds = self.ask("run_reward_program", {"timeout_s": timeout_s}, patience_s, program)
        try:
            outputs = [os.pread(fd, MAX_OUTPUT + 1, 0) for fd in fds]
        finally:
            for fd in fds:
                os.close(fd)
        answer = message["run_reward_program"]
        return RewardProgramRun(outputs[0], outputs[1], answer.get("returncode"), answer.get("spoiled", ""))

    def is_alive(self) -> bool:
        """Return whether the sandbox still runs; its programs may be dead even so."""
        return not self._process.has_ended()

    def why_down(self) -> Ended | None:
        """Return what ended or stopped the X server, the guest server or the sandbox, or None without reliable signs:
        they run or crashed, this host is out of memory, or process 1 got signals from outside, as when a cluster takes
        a node back. For a dead sandbox it only finds out whether the sandbox's own memory limit killed process 1.
        """
        if not self.is_alive():
            return Ended("all of its memory was used up", True) if self._killed_by_own_limit() else None
        try:
            down: dict[str, str] = self.ask("why_down", {}, ANSWER_TIMEOUT_S)[0]["why_down"]
        except DesktopBootError as error:
            logger.debug("the desktop's process 1 does not answer: %s", error)
            return None
        found = {name: end for name, end in down.items() if name in layout.NEEDED and end in _ON_REQUEST}
        by_own_limit = self._killed_by_own_limit()
        if by_own_limit is None or not found:
            return None
        all_at_once = len(down) == len(layout.WATCHED) and len(set(down.values())) == 1
        # Someone who kills a desktop from outside, its children first, kills process 1 right after them.
        all_at_once = all_at_once and not self._process.has_ended(_DYING_S)
        return Ended("; ".join(f"{name}: {end}" for name, end in found.items()), all_at_once or by_own_limit)

    def _killed_by_own_limit(self) -> bool | None:
        """Return whether the desktop's own memory limit killed programs since the boot; None if the host's kernel may
        have killed others for lack of memory."""
        own_kills, before, now = self.own_oom_kills(), self._out_of_memory_kills, _out_of_memory_kills()
        if before is None or now is None or now - before > own_kills:
            return None
        return own_kills > 0

    def was_hit_by_host(self) -> bool:
        """Return whether one of its programs was killed because this host, or a group above, ran out of memory, and not
        by its own limit."""
        return self._oom_kills() > 0 and not self._has_met_limit()

    def own_oom_kills(self) -> int:
        """Return how many of its programs were killed since the boot because they reached its own memory limit."""
        return self._oom_kills() if self._has_met_limit() else 0

    def _oom_kills(self) -> int:
        return self._cgroup.oom_kills() - self._kills_at_boot

    def _has_met_limit(self) -> bool:
        return self._cgroup.memory_met() > self._met_at_boot

    def kill(self) -> None:
        """End it without waiting; you must still `close` it."""
        self._process.kill()

    def close(self) -> None:
        """End it and wait until it is gone. Safe to call twice."""
        self._finalizer()

    def _last_words(self) -> str:
        self._process.has_ended(_DYING_S)
        return "" if self._log.closed else tail(self._log)

    def _begin_counting(self) -> None:
        self._cgroup.forget_peak()
        self._kills_at_boot, self._met_at_boot = self._cgroup.oom_kills(), self._cgroup.memory_met()

    def _enter(self, limits: cgroups.Limits) -> None:
        """Put its process 1 under the limits, and let it leave the template."""
        user_id = self._user.user_id if self._user else None
        is_bounded = cgroups.MEMORY in self._cgroup.controllers
        # One more than the group's limit, which must be reached first, since only the group counts.
        pids = limits.pids + (cgroups.PIDS in self._cgroup.controllers)
        words = {
            "user_id": user_id,
            "pids": pids,
            "data_bytes": None if is_bounded else limits.memory_mib * cgroups.MIB,
            "files": {} if user_id is None else sandbox.identity(user_id),
        }
        try:
            self._process.move_to(self._cgroup)
            self._control.send(json.dumps(words).encode())
        except OSError as error:
            raise DesktopBootError(f"the desktop's sandbox is gone ({error}){self._last_words()}") from error
        self._receive(fork_server.FORK_TIMEOUT_S)

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
    """Return how many processes this host's kernel has killed for lack of memory; None if it does not count them."""
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
    """End process 1, which ends everything in the sandbox."""
    process.kill()
    if not process.has_ended(EXIT_TIMEOUT_S):
        logger.warning("a desktop's sandbox (process %d) did not end within %g s", process.pid, EXIT_TIMEOUT_S)
    for channel in channels:
        channel.close()
    cgroup.close()
    if user is not None:
        user.close()


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
