"""The desktop of a virtual machine of its own: `python -c "from arpo_guest.machine import main; main()"`, as its root.

What the host does for a sandbox is done here by one more process: it starts process 1 of the desktop, has it boot, and
hands it the connections that come to OSWorld's port. Other ports of the desktop need nobody: they are the machine's.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import selectors
import socket
import sys

from . import layout

COMMAND_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 240.0
"""How long a part of the session may take, in a machine that is emulated on a busy host."""
USER_ID = 1000
PIDS = 4096
_PR_SET_CHILD_SUBREAPER = 36
_SCREEN = re.compile(r"\barpo\.screen=(\d{3,4})x(\d{3,4})\b")


def main() -> None:
    """Boot the desktop with the screen that the kernel's command line says, and serve it until it ends."""
    with open("/proc/cmdline") as words:
        said = _SCREEN.search(words.read())
    serve_desktop(*map(int, said.groups()) if said else (1920, 1080))


def serve_desktop(width: int, height: int) -> None:
    """Boot a desktop with a screen of so many pixels, and serve it until it ends."""
    control, init_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connections, init_connections = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        control.close()
        connections.close()
        _run_desktop(init_control, init_connections)
    init_control.close()
    init_connections.close()
    _expect(control, "ready")
    command = {"width": width, "height": height, "command_timeout_s": COMMAND_TIMEOUT_S}
    control.send(json.dumps({"boot": command}).encode())
    _expect(control, "boot")
    _serve(control, connections)


def _run_desktop(control: socket.socket, connections: socket.socket) -> None:
    """Process 1 of the desktop. It is not the machine's, so it asks for the orphans that it must collect."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    from . import init, interpreter, privileges, session

    session.STEP_TIMEOUT_S = STEP_TIMEOUT_S
    privileges.become(USER_ID)
    privileges.bound(PIDS, None)
    privileges.hide()
    os.umask(0o022)
    layout.adopt()
    interpreter.warm_up()
    init.main(control, connections)


def _expect(control: socket.socket, key: str) -> None:
    packet = control.recv(65536)
    if key not in json.loads(packet or b"{}"):
        sys.exit(f"the desktop did not say {key!r}: {packet.decode()!r}")


def _serve(control: socket.socket, connections: socket.socket) -> None:
    """Hand every connection that comes to the desktop, until it ends. Nothing listened before: OSWorld polls for it."""
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
