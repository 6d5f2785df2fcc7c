"""Fixed addresses for desktops that listen on ports of their own choosing: what a container's published ports do."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading


class PortForward:
    """Listens on `address` and copies bytes to and from the port of this machine that `target` names, once it does.

    A connection that comes earlier is closed, as Docker's own proxy does while nothing listens in the container.
    """

    def __init__(self, address: tuple[str, int]):
        self.target: int | None = None
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(address)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Free the port at once, connections included."""
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            if self.target is None:
                return
            with socket.create_connection(("127.0.0.1", self.target)) as far:
                self._open |= {near, far}
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far)
                back.join()
                self._open -= {near, far}


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        shutil.copyfileobj(source.makefile("rb", 0), sink.makefile("wb", 0))
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
