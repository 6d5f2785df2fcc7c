"""The host's side of the sandboxes' template starts it with the first sandbox, asks it for forks, and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Sequence
from typing import IO

from arpo_verl import reaper, relay
from arpo_verl.bubblewrap import USER_NAMESPACES
from arpo_verl.desktop import packages, sandbox
from arpo_verl.desktop.process import ProcessHandle, in_lasting_thread
from arpo_verl.errors import DesktopBootError, MissingDependencyError

START_TIMEOUT_S = 60.0
"""The time-out of a start, until Python has all imports: that takes 0.3 s on an idle machine."""
_MAX_PACKET = 4096


class Template:
    """This is a running template. The kernel ends it and all its forks with this object, or with its process."""

    def __init__(self, extra_read_only: Sequence[str]):
        """Start the template, without waiting for it.

        Raises:
            MissingDependencyError: a program or a Python package is not installed.
        """
        _require_programs()
        self._lock = threading.Lock()
        self._is_ready = False
        self._log = tempfile.TemporaryFile()
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control, contextlib.ExitStack() as stack:
            inherited = [control.fileno()]

            def in_memory(content: bytes) -> int:
                fd = stack.enter_context(open(os.memfd_create("sandbox"), "w+b", buffering=0)).fileno()
                os.write(fd, content)
                os.lseek(fd, 0, os.SEEK_SET)
                inherited.append(fd)
                return fd

            self._process = start_sandbox(
                sandbox.command(control.fileno(), extra_read_only, in_memory), inherited, self._log
            )
        _alive.add(self)
        self._finalizer = weakref.finalize(self, _end, self._process, self._control, self._log)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, control: socket.socket, connections: socket.socket, log: IO[bytes]) -> ProcessHandle:
        """Fork a new sandbox's first process, which waits on `control`.

        Raises:
            DesktopBootError: the template cannot fork it.
        """
        with self._lock:
            try:
                if not self._is_ready:
                    self._receive()
                    self._is_ready = True
                fds = [control.fileno(), connections.fileno(), log.fileno()]
                socket.send_fds(self._control, [b"fork"], fds)
                return ProcessHandle(self._receive()[0])
            except OSError as error:
                raise self._failure(str(error)) from error

    def _receive(self) -> list[int]:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(START_TIMEOUT_S * 1000):
            self._process.kill()
            raise self._failure(f"no answer within {START_TIMEOUT_S:g} s")
        packet, fds, _, _ = socket.recv_fds(self._control, _MAX_PACKET, 1)
        if not packet:
            raise self._failure("")
        answer = json.loads(packet)
        if "error" in answer:
            raise self._failure(answer["error"])
        return fds

    def _failure(self, reason: str) -> DesktopBootError:
        words = f" ({reason})" * bool(reason) + last_words(self._process, self._log)
        refused = ("namespace", "uid map", "unshare", "Operation not permitted", "Permission denied")
        hint = f"; {USER_NAMESPACES}" if any(sign in words for sign in refused) else ""
        return DesktopBootError(f"the desktop's sandbox ended{words}{hint}")


_alive: weakref.WeakSet[Template] = weakref.WeakSet()
_templates: weakref.WeakValueDictionary[tuple[bool, tuple[str, ...]], Template] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def template_for(extra_read_only: Sequence[str]) -> Template:
    """Return this process's template that shows these folders; it ends with its last user.

    Raises:
        MissingDependencyError: a program or a Python package is not installed.
    """
    key = sandbox.is_own_user(), tuple(extra_read_only)
    with _lock:
        template = _templates.get(key)
        if template is None or not template.is_alive():
            template = _templates[key] = Template(extra_read_only)
        return template


def start_sandbox(command: Sequence[str], inherited: Sequence[int], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a bubblewrap that the kernel kills when this process ends, and collect it if it ends first."""
    process = in_lasting_thread(
        lambda: subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=inherited,
            start_new_session=True,  # only the owner handles a Ctrl-C in its terminal
            cwd="/",
            env=reaper.marked_environment(),
        )
    )
    descriptor = os.pidfd_open(process.pid)
    relay.when_readable(descriptor, process.wait)
    os.close(descriptor)
    return process


def last_words(process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """Return an ending sandbox's last output, for the end of a message; empty if there is none."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    return tail(log)


def tail(log: IO[bytes]) -> str:
    """Return the end of a log, for the end of a message; empty if there is none."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
    words = log.read(2000).decode(errors="replace").strip()
    return f": {words}" if words else ""


def _require_programs() -> None:
    missing = packages.missing_packages(packages.BASE)
    if missing:
        raise MissingDependencyError(
            f"the embedded desktop needs {', '.join(packages.BASE[name] for name in missing)}; "
            f"run: {packages.install_command(missing)}"
        )


def _end(process: subprocess.Popen[bytes], control: socket.socket, log: IO[bytes]) -> None:
    """End bubblewrap, which ends the template, which ends every fork."""
    process.kill()
    process.wait()
    control.close()
    log.close()


def _forget_after_fork() -> None:
    """A fork of the owner must not keep the template alive by holding the other end of its channel."""
    global _lock
    _lock = threading.Lock()
    _templates.clear()
    for template in list(_alive):
        template._finalizer.detach()
        template._control.close()


os.register_at_fork(after_in_child=_forget_after_fork)
