"""Process 1 of a sandbox boots its only desktop, and dies when the host's connection ends.

It is a single-threaded fork of `template`, with the heavy modules imported, so its own forks are warm. Its channels:

    control      the host's commands, in JSON, one a packet. When it ends, the owner is gone, so process 1 exits, and
                 the kernel kills everything in the namespace
    connections  connections that the host relays to the guest server, one file a packet
    zygote       the guest server's requests for an interpreter, one file a packet
    apart        the guest server's way to the sandbox's first process, see `apart`; a virtual machine has none
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import Xlib.ext.xtest  # noqa: F401  warm for the forks
import Xlib.XK  # noqa: F401
from PIL import Image, PngImagePlugin  # noqa: F401

from . import children, interpreter, layout, reward_program, server, session, web_apps

MAX_PACKET = 65536
DYING_S = 0.2  # the caller has just seen a connection end, which a dying process closes before it is dead


class Init:
    """The state of process 1."""

    def __init__(self, control: socket.socket, connections: socket.socket, apart: socket.socket | None):
        self._control = control
        self._connections = connections
        self._apart = apart
        self._zygote: socket.socket | None = None
        self._server_pid: int | None = None
        self._apps: list[web_apps.App] = []
        self._app_state: web_apps.SharedState | None = None
        self._handoff: dict[str, bytes] = {}
        self._wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the host is gone."""
        self._tell({"ready": True})
        while True:
            for fd in self._wait():
                if fd == self._control.fileno() and not self._obey():
                    return
                if self._zygote is not None and fd == self._zygote.fileno():
                    self._fork_interpreter()
                if fd == self._wakeup:
                    self._collect_dead()
                if fd == self._connections.fileno():
                    self._refuse_connection()

    def _wait(self) -> list[int]:
        poller = select.poll()
        fds = [self._control.fileno(), self._wakeup]
        if self._zygote is not None:
            fds.append(self._zygote.fileno())
        if self._server_pid is None:  # nobody else takes them
            fds.append(self._connections.fileno())
        for fd in fds:
            poller.register(fd, select.POLLIN)
        return [fd for fd, _ in poller.poll()]

    def _obey(self) -> bool:
        packet, fds, _, _ = socket.recv_fds(self._control, MAX_PACKET, 1)
        if not packet:
            return False
        ((name, arguments),) = json.loads(packet).items()
        try:
            if name == "why_down":
                self._tell({"why_down": self._why_down()})
            elif name == "serve_apps":
                self._serve_apps(fds[0])
                self._tell({"serve_apps": True})
            elif name == "seal":
                self._seal()
                self._tell({"seal": True})
            elif name == "run_reward_program":
                self._run_reward_program(fds[0], **arguments)
            else:
                self.boot(**arguments)
                self._tell({"boot": True})
        except Exception as error:
            traceback.print_exc()
            self._tell({"error": f"{type(error).__name__}: {error}"})
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def boot(self, width: int, height: int, command_timeout_s: float) -> None:
        """Start the desktop."""
        session.make_home()
        display = session.start(width, height)
        self._start_server(command_timeout_s)
        session.await_ready(display)

    def _start_server(self, command_timeout_s: float) -> None:
        self._zygote, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ready, tell = os.pipe()

        def main() -> None:
            server.serve(self._connections, theirs, self._apart, command_timeout_s, lambda: os.write(tell, b"\n"))

        channels = [one for one in (self._connections, theirs, self._apart) if one is not None]
        self._server_pid = children.fork(main, "server", (*(channel.fileno() for channel in channels), tell))
        theirs.close()
        os.close(tell)
        self._fork_interpreter()  # it asks for its first one before it is ready
        session.await_line(ready, "server")

    # --- Bundles: web applications, and a reward program ------------------------------------------------------------

    def _serve_apps(self, archive: int) -> None:
        if self._app_state is not None:
            self._app_state.close()
        self._apps = web_apps.unpack(os.pread(archive, os.fstat(archive).st_size, 0))
        self._app_state = web_apps.SharedState()
        self._fork_apps(read_only=False)

    def _fork_apps(self, read_only: bool) -> None:
        apps, state = self._apps, self._app_state
        if state is None:
            return
        ready, tell = os.pipe()

        def main() -> None:
            web_apps.serve(apps, state, lambda: os.write(tell, b"\n"), read_only)

        children.fork(main, "web-apps", (*state.files, tell))
        os.close(tell)
        session.await_line(ready, "web-apps")

    def _seal(self) -> None:
        """End the set-up: keep the initial state and the hand-off files that it left."""
        if self._app_state is not None:
            self._app_state.seal()
        self._handoff = reward_program.handoff_files()

    def _run_reward_program(self, program: int, timeout_s: float) -> None:
        """Run the program alone, which ends the desktop; its two outputs follow the answer as files."""
        self._forget_server()
        children.kill_all()
        with os.fdopen(os.memfd_create("stdout"), "wb") as stdout, os.fdopen(os.memfd_create("stderr"), "wb") as stderr:
            try:
                reward_program.restore(self._handoff)
                reward_program.make_room_for_logs()
                self._fork_apps(read_only=True)
            # The dead programs left no room, something in the way, or endless folders.
            except (OSError, RecursionError) as error:
                self._tell({"run_reward_program": {"spoiled": str(error)}}, (stdout.fileno(), stderr.fileno()))
                return
            answer = reward_program.run(program, stdout.fileno(), stderr.fileno(), timeout_s, self._control.fileno())
            children.kill_all()
            self._tell({"run_reward_program": answer}, (stdout.fileno(), stderr.fileno()))

    def _forget_server(self) -> None:
        self._server_pid = None
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _fork_interpreter(self) -> None:
        assert self._zygote is not None
        packet, fds, _, _ = socket.recv_fds(self._zygote, 64, 1)
        if not packet:
            self._forget_server()
            return
        for fd in fds:

            def main(fd: int = fd) -> None:
                interpreter.serve(Connection(fd))

            # The desktop's programs may have used up all processes; the caller then sees its connection end.
            with contextlib.suppress(BlockingIOError):
                children.fork(main, "interpreter", (fd,))
            os.close(fd)

    def _collect_dead(self) -> None:
        os.read(self._wakeup, 4096)
        children.collect()
        self._forget_dead_server()

    def _forget_dead_server(self) -> None:
        if "server" in children.ended:
            self._forget_server()

    def _why_down(self) -> dict[str, str]:
        """Return the needed processes that do not run, and how they ended."""
        deadline = time.monotonic() + DYING_S
        while len(down := children.why_down()) < len(layout.WATCHED) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._forget_dead_server()
        return down

    def _refuse_connection(self) -> None:
        """Close the host's connection: its peer sees the end at once instead of waiting for a dead server."""
        packet, fds, _, _ = socket.recv_fds(self._connections, 64, 1)
        for fd in fds:
            os.close(fd)
        if not packet:  # the host closed this channel; the control channel's end follows
            time.sleep(0.01)

    def _tell(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], fds)


def main(control: socket.socket, connections: socket.socket, apart: socket.socket | None = None) -> None:
    """Run process 1 with its two channels to the host and its server's channel to the first process; never return."""
    children.watch_outside()
    for channel in (control, connections):
        channel.set_inheritable(False)
    try:
        Init(control, connections, apart).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the owner is gone
    sys.stderr.flush()
    os._exit(0)
