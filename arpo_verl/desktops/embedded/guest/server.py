"""The guest server speaks OSWorld's HTTP protocol on connections that the host relays, with a thread for each."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from . import commands, files, layout, screen, windows
from .apart import ApartCommands
from .interpreter_pool import InterpreterPool
from .messages import Request, Response

Route = Callable[[Request], Response]
CONNECT_TIMEOUT_S = 5.0


def serve(
    connections: socket.socket,
    process_1: socket.socket,
    first_process: socket.socket | None,
    command_timeout_s: float,
    ready: Callable[[], object],
) -> None:
    """Answer every connection that arrives as a file on `connections`, until that closes.

    Args:
        connections, process_1: see `init`.
        first_process: see `apart`; None if all commands run in the session.
        command_timeout_s: see `commands.routes`.
        ready: called once, when the server is ready.
    """
    pool = InterpreterPool(process_1)
    pool.warm_up()
    display = screen.Screen()
    routes = {
        **commands.routes(pool, None if first_process is None else ApartCommands(first_process), command_timeout_s),
        **files.routes(),
        **screen.routes(display),
        **windows.routes(display),
        ("POST", "/start_recording"): _refuse_recording,
        ("POST", "/end_recording"): _refuse_recording,
    }
    ready()
    while True:
        packet, fds, _, _ = socket.recv_fds(connections, 64, 1)
        if not packet:
            return
        for fd in fds:
            target = _answer if int(packet) == layout.SERVER_PORT else _tunnel
            detail = routes if target is _answer else int(packet)
            connection = socket.socket(fileno=fd)
            try:
                threading.Thread(target=target, args=(connection, detail), daemon=True).start()
            except RuntimeError:  # the desktop's programs have used up all threads
                connection.close()


def _answer(connection: socket.socket, routes: dict[tuple[str, str], Route]) -> None:
    with connection:
        try:
            _GuestHandler(connection, routes)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client did not wait for the answer


class _GuestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def __init__(self, connection: socket.socket, routes: dict[tuple[str, str], Route]):
        self._routes = routes
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]  # it never asks its server anything

    def do_GET(self) -> None:
        self._reply()

    def do_POST(self) -> None:
        self._reply()

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        route = self._routes.get((self.command, path))
        if route is None:
            response = Response.error(HTTPStatus.NOT_FOUND, f"this guest has no {self.command} {path}")
        else:
            response = _call(route, Request(self.headers.get("Content-Type", ""), body))
        file = response.file
        length = len(response.body) if file is None else os.fstat(file.fileno()).st_size
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(response.body)
        if file is not None:
            self.wfile.flush()
            with file:
                # If the file shrank meanwhile, the connection ends early, which the client notices.
                self.close_connection = length > 0 and self.connection.sendfile(file, 0, length) < length

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line for every request of a long episode would fill the memory that holds the logs."""


def _call(route: Route, request: Request) -> Response:
    """Return the route's answer; other exceptions become a 500 with their text, as OSWorld's server does."""
    try:
        return route(request)
    except (KeyError, TypeError, ValueError, json.JSONDecodeError) as error:
        return Response.error(HTTPStatus.BAD_REQUEST, f"{type(error).__name__}: {error}")
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return Response.error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def _refuse_recording(request: Request) -> Response:
    return Response.error(
        HTTPStatus.NOT_IMPLEMENTED,
        "the embedded desktop records no video: the screenshots of a trajectory show each step",
    )


# --- Ports of the desktop's programs, such as Chrome's DevTools ------------------------------------------------------


def _tunnel(connection: socket.socket, port: int) -> None:
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
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
