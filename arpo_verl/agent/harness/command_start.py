"""The first of a command's own processes: it opens its ports, gives up every privilege and becomes it.

It runs before anything of the command does. The request and the ports go through one socket, which closes by itself
when the command begins.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from arpo_verl.desktops.embedded.guest import privileges
from arpo_verl.desktops.osworld.verdict import messages

HOST = "127.0.0.1"


def main(channel_fd: int) -> None:
    """Become the command that the channel names; returns only where that cannot be."""
    channel = socket.socket(fileno=channel_fd)
    channel.set_inheritable(False)
    request = messages.receive(channel, messages.MAX_REQUEST_BYTES)
    if request is None:
        return
    try:
        listeners = [socket.create_server((HOST, port)) for port in request["ports"]]
        messages.send(channel, {"ports": len(listeners)})
        messages.send_descriptors(channel, [listener.fileno() for listener in listeners])
        for listener in listeners:
            listener.close()  # the worker has it: it alone accepts
        _become(request)
    except OSError as error:
        messages.send(channel, {"error": str(error)})


def _become(request: dict[str, Any]) -> None:
    privileges.gain_none()
    privileges.become(request["user_id"])
    privileges.bound(request["pids"], request["data_bytes"])
    os.umask(0o077)
    environment = request["environment"]
    os.makedirs(request["home"], exist_ok=True)
    os.execvpe(request["command"][0], request["command"], environment)  # noqa: S606  in a sandbox, as nobody
