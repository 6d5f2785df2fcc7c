"""This module starts this process's sandbox host, asks it for sandboxes, and ends it."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple

from arpo_verl.bubblewrap import USER_NAMESPACES
from arpo_verl.desktop import users
from arpo_verl.desktop.cgroups import Cgroup
from arpo_verl.desktop.process import ProcessHandle
from arpo_verl.desktop.template import last_words, start_sandbox
from arpo_verl.environments.osworld.verdict import host_command
from arpo_verl.environments.provider_checks import require_bubblewrap
from arpo_verl.errors import DesktopBootError, DesktopError, EvaluatorError

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 180.0
"""The time-out of a start, until the client is imported: that takes 2 s on an idle machine, 8 s on a busy one."""
FORK_TIMEOUT_S = 60.0
"""The time-out of a fork; a warm host takes 10 ms."""
KILL_TIMEOUT_S = 30.0
_MAX_PACKET = 4096


class SandboxProcess(ProcessHandle):
    """This is a sandbox's process, and with it all that it started."""

    def move_to(self, group: Cgroup) -> None:
        """Put it, and what it starts from now on, under the limits of `group`.

        Raises:
            ProcessLookupError: it has ended.
        """
        pid = self.pid
        if not pid:  # 0 would be this process
            raise ProcessLookupError("the sandbox has ended")
        group.admit(pid)

    def await_end(self) -> None:
        """Wait until the last of its processes is gone."""
        if not self.has_ended(KILL_TIMEOUT_S):
            logger.error("the sandbox of an evaluation did not end within %g s of being killed", KILL_TIMEOUT_S)


class ReadySandbox(NamedTuple):
    """This sandbox waits for its request."""

    process: SandboxProcess
    channel: socket.socket


class SandboxHost:
    """This is a running sandbox host. It ends with this object, or with the process that holds it, in any case."""

    def __init__(self) -> None:
        """Start the host, without waiting for it.

        Raises:
            MissingDependencyError: bubblewrap is not installed.
        """
        require_bubblewrap()
        self._log = tempfile.TemporaryFile()
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control:
            command = host_command.command(control.fileno())
            self._process = start_sandbox(command, [control.fileno()], self._log)
        self._lock = threading.Lock()
        self._ready = False
        self._spare: ReadySandbox | None = None
        # It forks the next sandbox and removes the last one in the background.
        self._background = ThreadPoolExecutor(1, thread_name_prefix="sandbox-host")
        self._deadline = time.monotonic() + START_TIMEOUT_S
        _alive.add(self)
        self._finalizer = weakref.finalize(self, _end, self._process, self._control, self._log, self._background)

    @property
    def pid(self) -> int:
        """The id of the host's process."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Return whether it runs, or is still starting."""
        return self._process.poll() is None

    def await_ready(self) -> None:
        """Wait until it can give sandboxes.

        Raises:
            DesktopBootError: it does not start; with the reason, if it gave one.
        """
        with self._lock:
            self._await_ready()

    def take_sandbox(self) -> ReadySandbox:
        """Return a new sandbox; it forks the next one in the background.

        Raises:
            DesktopError: there is none.
        """
        with self._lock:
            sandbox, self._spare = self._spare, None
        if sandbox is None:
            sandbox = self._fork()
        self._background.submit(self._have_spare)
        return sandbox

    def bury(self, process: SandboxProcess, user: users.UserClaim | None, group: Cgroup | None) -> None:
        """Kill a sandbox; when it is gone, remove its group and free its user for others."""
        process.kill()

        def await_end() -> None:
            process.await_end()
            if group is not None:
                group.close()
            if user is not None:
                user.close()

        self._background.submit(await_end)

    def _have_spare(self) -> None:
        if self._spare is None and self.is_alive():
            try:
                sandbox = self._fork()
            except DesktopError as error:  # the next evaluation will raise it
                logger.debug("no sandbox could be forked in advance: %s", error)
                return
            with self._lock:
                self._spare = sandbox

    def _fork(self) -> ReadySandbox:
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            self._await_ready()
            try:
                socket.send_fds(self._control, [b"sandbox"], [theirs.fileno()])
                answer, descriptors = self._receive(time.monotonic() + FORK_TIMEOUT_S)
            except OSError as error:
                raise EvaluatorError(
                    f"the sandbox host is gone ({error}){last_words(self._process, self._log)}"
                ) from error
        if not descriptors:
            raise EvaluatorError(f"the sandbox host could not start a sandbox: {answer.get('error', answer)}")
        return ReadySandbox(SandboxProcess(descriptors[0]), ours)

    def close(self) -> None:
        """End it and all sandboxes. Safe to call twice."""
        self._finalizer()

    def _await_ready(self) -> None:
        if self._ready:
            return
        try:
            self._receive(self._deadline)
        except EvaluatorError as error:
            raise DesktopBootError(str(error)) from error
        self._ready = True

    def _receive(self, deadline: float) -> tuple[dict[str, Any], list[int]]:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self.close()
            raise EvaluatorError("the sandbox host did not answer in time, so we ended it")
        packet, descriptors, _, _ = socket.recv_fds(self._control, _MAX_PACKET, 1)
        if not packet:
            words = last_words(self._process, self._log)
            hint = f"; {USER_NAMESPACES}" if "bwrap:" in words or "unshare" in words else ""
            raise EvaluatorError(f"the sandbox host, which gives verdicts, ended{words}{hint}")
        answer: dict[str, Any] = json.loads(packet)
        return answer, list(descriptors)


def _end(
    process: subprocess.Popen[bytes], control: socket.socket, log: IO[bytes], background: ThreadPoolExecutor
) -> None:
    """End bubblewrap, which ends the host, which ends every sandbox."""
    background.shutdown(wait=False)
    process.kill()
    process.wait()
    control.close()
    log.close()


_alive: weakref.WeakSet[SandboxHost] = weakref.WeakSet()
_lock = threading.Lock()
_host: SandboxHost | None = None


def this_process_host() -> SandboxHost:
    """Return this process's sandbox host, which it starts on first use, and again after it died.

    Raises:
        MissingDependencyError: bubblewrap is not installed.
    """
    global _host
    with _lock:
        if _host is None or not _host.is_alive():
            if _host is not None:
                logger.warning("the sandbox host (process %d) is gone; starting another", _host.pid)
                _host.close()
            _host = SandboxHost()
        return _host


def _forget_after_fork() -> None:
    """A fork of the owner must not keep the host alive by holding the other end of its channel."""
    global _lock, _host
    _lock, _host = threading.Lock(), None
    for host in list(_alive):
        host._finalizer.detach()
        host._control.close()


os.register_at_fork(after_in_child=_forget_after_fork)
