"""Serve mock web applications on the desktop's loopback: their built files, and CUA-Gym-Hub's state API.

Everything is in the memory of one process: a fork of process 1, which the desktop's other programs can neither trace
nor read. After each change it writes its sessions into memory that process 1 shares, so that the last state is known
however the process ends. After sealing, nobody can change the set-up's initial state.

Source of the API: https://github.com/xlang-ai/CUA-Gym-Hub, README, "State API".
"""

from __future__ import annotations

import json
import mimetypes
import os
import re
import secrets
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .messages import Request, Response

MAX_BODY = 16 << 20
MAX_STATE = 32 << 20
"""Most bytes of all sessions together, as JSON."""
MAX_UPLOADS = 64 << 20
MAX_SESSIONS = 64
_LENGTH = struct.Struct(">Q")
_SID = re.compile(r"[^a-zA-Z0-9_-]")

Sessions = dict[str, dict[str, Any]]
"""For each session its `initial` and `current` state, as JSON values."""


@dataclass(frozen=True)
class App:
    """One application: its port, and its files by path."""

    name: str
    port: int
    files: Mapping[str, bytes] = field(repr=False)


def unpack(content: bytes) -> list[App]:
    """Unpack what the host's `desktops/embedded/web_apps.py: pack` made."""
    (length,) = _LENGTH.unpack_from(content)
    body = _LENGTH.size + length
    index = json.loads(content[_LENGTH.size : body])
    return [
        App(one["name"], one["port"], {path: content[body + start : body + end] for path, start, end in one["files"]})
        for one in index
    ]


class SharedState:
    """A fork writes these bytes and process 1 reads them, whole or not at all, in files that nobody else has open.

    Two files hold content, one of them valid; the third says which, and whether the set-up is over.
    """

    def __init__(self) -> None:
        self.files = [os.memfd_create("apps") for _ in range(3)]
        os.pwrite(self.files[2], bytes(2), 0)

    def write(self, content: bytes) -> None:
        """Write the state; only one process may do this."""
        number = 1 - self._flag(0)
        os.ftruncate(self.files[number], 0)
        os.pwrite(self.files[number], _LENGTH.pack(len(content)) + content, 0)
        os.pwrite(self.files[2], bytes([number]), 0)

    def read(self) -> bytes:
        """Return the last written state; empty if there is none."""
        file = self.files[self._flag(0)]
        head = os.pread(file, _LENGTH.size, 0)
        return os.pread(file, _LENGTH.unpack(head)[0], _LENGTH.size) if len(head) == _LENGTH.size else b""

    def seal(self) -> None:
        """Fix the initial states from now on."""
        os.pwrite(self.files[2], b"\1", 1)

    @property
    def is_sealed(self) -> bool:
        return self._flag(1) == 1

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            os.close(file)

    def _flag(self, number: int) -> int:
        return os.pread(self.files[2], 1, number)[0]


class _Refused(Exception):
    """We refuse a request; the message is for its sender."""


class _Store:
    """Holds the sessions of all applications, and the files that pages and the set-up upload."""

    def __init__(self, shared: SharedState):
        self._shared = shared
        self._lock = threading.Lock()
        stored = shared.read()
        self._sessions: dict[str, Sessions] = json.loads(stored) if stored else {}
        self._files: dict[tuple[str, str, str], tuple[str, bytes]] = {}
        """Content type and bytes by application, session and name."""

    def get(self, app: str, sid: str) -> dict[str, Any] | None:
        with self._lock:
            return self._sessions.get(app, {}).get(sid)

    def post(self, app: str, sid: str, payload: Mapping[str, Any]) -> None:
        action, state = payload.get("action", "set"), payload.get("state")
        with self._lock:
            sessions = {name: dict(of_app) for name, of_app in self._sessions.items()}
            mine = sessions.setdefault(app, {})
            now = mine.get(sid)
            if self._shared.is_sealed and now is not None and action != "set_current":
                raise _Refused(f"only the set-up may use the action {action!r}")
            if payload.get("merge") and now is not None:
                state = _merged(now["current"], state)
            if action == "set":
                mine[sid] = {"initial": state, "current": state}
            elif action == "set_current":
                mine[sid] = {"initial": None if now is None else now["initial"], "current": state}
            elif action == "reset":
                if now is not None:
                    mine[sid] = {"initial": now["initial"], "current": now["initial"]}
            else:
                raise _Refused(f"no action {action!r}")
            content = json.dumps(sessions).encode()
            if len(content) > MAX_STATE or sum(map(len, sessions.values())) > MAX_SESSIONS:
                raise _Refused("more state than fits")
            self._shared.write(content)
            self._sessions = sessions

    def add_file(self, app: str, sid: str, name: str, kind: str, content: bytes) -> dict[str, Any]:
        stored = f"{secrets.token_hex(4)}_{re.sub(r'[^a-zA-Z0-9._-]', '_', name)}"
        with self._lock:
            if sum(len(one) for _, one in self._files.values()) + len(content) > MAX_UPLOADS:
                raise _Refused("more files than fit")
            self._files[app, sid, stored] = kind, content
        return {
            "original_name": name,
            "stored_name": stored,
            "size": len(content),
            "content_type": kind,
            "url": f"/files/{sid}/{stored}",
        }

    def file(self, app: str, sid: str, stored: str) -> tuple[str, bytes] | None:
        return self._files.get((app, sid, stored))


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def difference(old: Any, new: Any, path: str = "") -> dict[str, Any]:
    """Return `{"a.b": {"old": ..., "new": ...}}` for each value that differs; a list is one value."""
    found: dict[str, Any] = {}
    for key in {**old, **new}:
        before, after = old.get(key), new.get(key)
        where = f"{path}.{key}" if path else str(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found |= difference(before, after, where)
        elif before != after:
            found[where] = {"old": before, "new": after}
    return found


def serve(apps: list[App], shared: SharedState, ready: Callable[[], object], read_only: bool = False) -> None:
    """Serve the applications for ever, starting from the state in `shared`; call `ready` once they listen.

    Args:
        read_only: accept no changes, as while a reward program runs.
    """
    store = _Store(shared)
    servers = [_Server(app, store, read_only) for app in apps]
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    ready()
    servers[0].serve_forever()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, app: App, store: _Store, read_only: bool):
        self.app, self.store, self.read_only = app, store, read_only
        super().__init__(("127.0.0.1", app.port), _AppHandler)


class _AppHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    timeout = 60

    def do_GET(self) -> None:
        self._reply(self._get)

    def do_HEAD(self) -> None:
        self._reply(self._get)

    def do_POST(self) -> None:
        self._reply(self._post)

    def _reply(self, answer: Callable[[str, str], Response]) -> None:
        parts = urlsplit(self.path)
        sid = _SID.sub("", parse_qs(parts.query).get("sid", ["default"])[0])
        try:
            response = answer(parts.path, sid)
        except _Refused as error:
            self.close_connection = True
            response = Response.json({"error": str(error)}, HTTPStatus.FORBIDDEN)
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
            self.close_connection = True
            response = Response.json({"error": f"{type(error).__name__}: {error}"[:500]}, HTTPStatus.BAD_REQUEST)
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def _get(self, path: str, sid: str) -> Response:
        app, session = self.server.app, self.server.store.get(self.server.app.name, sid)
        if path == "/state":
            stored = None if session is None else session["current"]
            return Response.json({"stored_state": stored, "has_custom_state": session is not None, "sid": sid})
        if path == "/go":
            initial, current = (None, None) if session is None else (session["initial"], session["current"])
            both = isinstance(initial, dict) and isinstance(current, dict)
            changed = difference(initial, current) if both else {}
            return Response.json({"initial_state": initial, "current_state": current, "state_diff": changed})
        if path.startswith("/files/"):
            names = path.split("/")[2:]
            found = self.server.store.file(app.name, names[0], names[1]) if len(names) == 2 else None
            if found is None:
                return Response.text("Not found", HTTPStatus.NOT_FOUND)
            return Response(HTTPStatus.OK, found[0], found[1])
        name = unquote(path).lstrip("/") or "index.html"
        if name not in app.files:  # a route inside the page, unless it asks for a file
            if "." in name.rpartition("/")[2]:
                return Response.text("Not found", HTTPStatus.NOT_FOUND)
            name = "index.html"
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(HTTPStatus.OK, kind, app.files.get(name, b""))

    def _post(self, path: str, sid: str) -> Response:
        length = int(self.headers.get("Content-Length") or 0)
        if self.server.read_only or not 0 <= length <= MAX_BODY:
            raise _Refused("not taken")
        request = Request(self.headers.get("Content-Type", ""), self.rfile.read(length))
        if path == "/post":
            self.server.store.post(self.server.app.name, sid, request.json())
            return Response.json({"success": True, "ok": True, "status": "ok"})
        if path == "/upload":
            add = self.server.store.add_file
            files = [add(self.server.app.name, sid, name, kind, content) for name, kind, content in request.files()]
            if not files:
                raise ValueError("no files found")
            return Response.json({"success": True, "files": files})
        return Response.text("Not found", HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the memory that holds the logs is small."""
