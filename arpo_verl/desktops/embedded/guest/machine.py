"""A virtual machine's root runs its desktop with `python -c "from arpo_guest.machine import main; main()"`.

For a sandbox the host does this work. Here one more process starts process 1 of the desktop, lets it boot, and passes
it the connections to OSWorld's port. The desktop's other ports are the machine's own and need no process. Process 1
gets its own process namespace, so that another process can run commands apart from it (`apart`). A container that may
not make one runs all commands in the session.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import selectors
import socket
import sys

from . import layout, namespaces

COMMAND_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 240.0
"""How long a part of the session may take, in an emulated machine on a busy host."""
USER_ID = 1000
PIDS = 4096
_PR_SET_CHILD_SUBREAPER = 36
_SCREEN = re.compile(r"\barpo\.screen=(\d{3,4})x(\d{3,4})\b")


def main() -> None:
    """Boot the desktop with the screen size of the kernel's command line, and serve it until it ends."""
    with open("/proc/cmdline") as words:
        said = _SCREEN.search(words.read())
    serve_desktop(*map(int, said.groups()) if said else (1920, 1080))


def serve_desktop(width: int, height: int) -> None:
    """Boot a desktop with a screen of this size in pixels, and serve it until it ends."""
    control, init_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connections, init_connections = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    commands, of_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process_1, is_below = _fork_below()
    if process_1 == 0:
        for channel in (control, connections, commands):
            channel.close()
        _run_desktop(init_control, init_connections, of_server, is_below)
    for channel in (init_control, init_connections, of_server):
        channel.close()
    if is_below and os.fork() == 0:
        control.close()
        connections.close()
        _run_apart(commands, process_1)
    commands.close()
    _expect(control, "ready")
    command = {"width": width, "height": height, "command_timeout_s": COMMAND_TIMEOUT_S}
    control.send(json.dumps({"boot": command}).encode())
    _expect(control, "boot")
    _serve(control, connections)


def _fork_below() -> tuple[int, bool]:
    """Fork; return the child's id, and whether it is in a process namespace below ours."""
    with contextlib.closing(namespaces.ProcessNamespaces()) as below, contextlib.suppress(PermissionError):
        return below.fork(), True
    return os.fork(), False


def _run_desktop(control: socket.socket, connections: socket.socket, of_server: socket.socket, is_below: bool) -> None:
    """Run process 1 of the desktop. It becomes a subreaper, to collect orphans even without its own namespace."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if is_below:
        namespaces.own_mounts()
        namespaces.mount("proc", "/proc", "proc", namespaces.MS_NOSUID | namespaces.MS_NODEV | namespaces.MS_NOEXEC)
    from . import init, interpreter, session

    session.STEP_TIMEOUT_S = STEP_TIMEOUT_S
    _become_user()
    interpreter.warm_up()
    init.main(control, connections, of_server if is_below else None)


def _run_apart(commands: socket.socket, process_1: int) -> None:
    from . import apart

    namespaces.own_mounts()
    flags = namespaces.MS_NOSUID | namespaces.MS_NODEV
    namespaces.mount("tmpfs", apart.TEMPORARY, "tmpfs", flags, apart.MEMORY)
    _become_user()
    apart.serve(commands, os.pidfd_open(process_1))


def _become_user() -> None:
    from . import privileges

    privileges.become(USER_ID)
    privileges.bound(PIDS, None)
    privileges.hide()
    os.umask(0o022)
    layout.adopt()


def _expect(control: socket.socket, key: str) -> None:
    packet = control.recv(65536)
    if key not in json.loads(packet or b"{}"):
        sys.exit(f"the desktop did not send {key!r}, but {packet.decode()!r}")


def _serve(control: socket.socket, connections: socket.socket) -> None:
    """Pass every connection to the desktop, until that ends. The port opens only now, since OSWorld polls for it."""
    listener = socket.create_server(("0.0.0.0", layout.SERVER_PORT), backlog=64)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is control:
                sys.exit("the desktop ended")
            client, _ = listener.accept()
            with client:
                socket.send_fds(connections, [b"%d" % layout.SERVER_PORT], [client.fileno()])
