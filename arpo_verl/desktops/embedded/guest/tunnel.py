"""A tunnel connects the host to a port of a program in the desktop, such as Chrome's DevTools."""

from __future__ import annotations

import socket
import threading

CONNECT_TIMEOUT_S = 5.0


def connect(connection: socket.socket, port: int) -> None:
    """Join `connection` with the guest's own loopback `port`; close it if nothing listens there."""
    with connection:
        try:
            program = socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S)
        except OSError:
            return
        with program:
            program.settimeout(None)
            back = threading.Thread(target=_pump, args=(program, connection), daemon=True)
            back.start()
            _pump(connection, program)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(65536):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
