"""Start this process's sandbox host, ask it for sandboxes, and end it."""

from __future__ import annotations

import logging
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from arpo_verl.desktops.embedded import users
from arpo_verl.desktops.embedded.cgroups import Cgroup
from arpo_verl.desktops.embedded.fork_server import ForkServer
from arpo_verl.desktops.embedded.process import ProcessHandle
from arpo_verl.desktops.osworld.verdict import host_command
from arpo_verl.desktops.provider_checks import require_bubblewrap
from arpo_verl.errors import DesktopBootError, EvaluatorError

logger = logging.getLogger(__name__)

KILL_TIMEOUT_S = 30.0


class SandboxProcess(ProcessHandle):
    """A sandbox's process, and with it all that it started."""

    def move_to(self, group: Cgroup) -> None:
        """Put it, and what it starts from now on, under the limits of `group`, and before us where memory runs out.

        Raises:
            ProcessLookupError: it has ended.
        """
        pid = self.pid
        if not pid:  # 0 would be this process
            raise ProcessLookupError("the sandbox has ended")
        group.admit(pid)
        self.die_first()

    def await_end(self) -> None:
        """Wait until the last of its processes is gone."""
        if not self.has_ended(KILL_TIMEOUT_S):
            logger.error("the sandbox of an evaluation did not end within %g s of being killed", KILL_TIMEOUT_S)


class ReadySandbox(NamedTuple):
    """A sandbox that waits for its request."""

    process: SandboxProcess
    channel: socket.socket


class SandboxHost:
    """A running sandbox host. It ends with this object, or with the process that holds it, in any case."""

    def __init__(self) -> None:
        """Start the host, without waiting for it.

        Raises:
            MissingDependencyError: bubblewrap is not installed.
        """
        require_bubblewrap()
        self._server = ForkServer("the sandbox host, which gives verdicts,", host_command.command)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="sandbox-host")

    @property
    def pid(self) -> int:
        """The id of the host's process."""
        return self._server.pid

    def is_alive(self) -> bool:
        """Return whether it runs, or is still starting."""
        return self._server.is_alive()

    def await_ready(self) -> None:
        """Wait until it can give sandboxes.

        Raises:
            DesktopBootError: it does not start; with the reason, if it gave one.
        """
        self._server.await_ready()

    def take_sandbox(self) -> ReadySandbox:
        """Return a new sandbox.

        Raises:
            DesktopError: there is none.
        """
        self.await_ready()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                return ReadySandbox(SandboxProcess(self._server.fork([theirs.fileno()])), ours)
            except DesktopBootError as error:
                ours.close()
                raise EvaluatorError(str(error)) from error

    def remove(self, process: SandboxProcess, user: users.UserClaim | None, group: Cgroup | None) -> None:
        """Kill a sandbox; when it is gone, remove its group and free its user for others."""
        process.kill()

        def await_end() -> None:
            process.await_end()
            if group is not None:
                group.close()
            if user is not None:
                user.close()

        self._background.submit(await_end)

    def close(self) -> None:
        """End it and all sandboxes. Safe to call twice."""
        self._background.shutdown(wait=False)
        self._server.close()


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
    global _lock, _host
    _lock, _host = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_after_fork)
