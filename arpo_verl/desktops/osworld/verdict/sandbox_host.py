"""Start this process's sandbox host, ask it for sandboxes, and end it."""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import NamedTuple

from arpo_verl.desktops.embedded import users
from arpo_verl.desktops.embedded.cgroups import Cgroup
from arpo_verl.desktops.embedded.fork_server import ForkServer
from arpo_verl.desktops.embedded.process import ProcessHandle, lasting_thread
from arpo_verl.desktops.osworld.verdict import host_command
from arpo_verl.desktops.provider_checks import require_bubblewrap
from arpo_verl.errors import DesktopBootError, EvaluatorError

logger = logging.getLogger(__name__)

KILL_TIMEOUT_S = 30.0


class ReadySandbox(NamedTuple):
    """A sandbox that waits for its request."""

    process: ProcessHandle
    channel: socket.socket


class SandboxHost(ForkServer):
    """A running sandbox host. It ends with this object, or with the process that holds it, in any case."""

    def __init__(self) -> None:
        """Start the host, without waiting for it.

        Raises:
            MissingDependencyError: bubblewrap is not installed.
        """
        require_bubblewrap()
        super().__init__("the sandbox host, which gives verdicts,", host_command.command)

    def take_sandbox(self) -> ReadySandbox:
        """Return a new sandbox.

        Raises:
            DesktopError: there is none.
        """
        self.await_ready()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                return ReadySandbox(ProcessHandle(self.fork([theirs.fileno()])), ours)
            except DesktopBootError as error:
                ours.close()
                raise EvaluatorError(str(error)) from error


def remove(process: ProcessHandle, user: users.UserClaim | None, group: Cgroup | None) -> None:
    """Kill a sandbox; when the last of its processes is gone, remove its group and free its user for others."""
    process.kill()

    def await_end() -> None:
        if not process.has_ended(KILL_TIMEOUT_S):
            logger.error("the sandbox of an evaluation did not end within %g s of being killed", KILL_TIMEOUT_S)
        if group is not None:
            group.close()
        if user is not None:
            user.close()

    lasting_thread("sandbox-end").submit(await_end)


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
