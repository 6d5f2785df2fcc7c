"""A desktop whose policy has taken it over: OSWorld's guest protocol, answering whatever an attack wants.

It keeps what it is asked, and what code in the verdict's sandbox reports to it at `/report`: its one way out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from arpo_verl.desktop.machine_provider import GuestAddress, MachineProvider
from arpo_verl.types import Size, Task
from support.pictures import png

SIZE = Size(200, 150)
Reply = tuple[int, dict[str, str], bytes]


def as_json(**fields: Any) -> Reply:
    return 200, {}, json.dumps(fields).encode()


def printed(text: str) -> Reply:
    """A command's output."""
    return as_json(status="success", output=text, error="", returncode=0)


class HostileGuest(MachineProvider):
    """The guest, and OSWorld's provider of it. `files` is what is at which path; `replies` go before them."""

    def __init__(self) -> None:
        shot = png(size=SIZE)
        self.files: dict[str, bytes] = {}
        self.reports: list[Any] = []
        self.asked: list[str] = []
        self.replies: dict[str, Callable[[bytes], Reply | None]] = {
            "/screenshot": lambda body: (200, {}, shot),
            "/terminal": lambda body: as_json(output="", status="success"),
            "/execute": lambda body: printed("Linux"),
            "/file": self._file,
            "/report": self._report,
        }
        self.server: ThreadingHTTPServer | None = None

    # --- A machine of one's own ------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.server is None:
            self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
            self.server.daemon_threads = True
            threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def address(self) -> GuestAddress:
        assert self.server is not None
        return GuestAddress("127.0.0.1", self.server.server_port, 1, 1)

    def reset(self) -> None:
        """The same one goes on."""

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    # ---------------------------------------------------------------------------------------------------------------

    def _file(self, body: bytes) -> Reply:
        path = body.decode().partition("file_path=")[2].replace("%2F", "/")
        return (200, {}, self.files[path]) if path in self.files else (404, {}, b"no such file")

    def _report(self, body: bytes) -> Reply:
        self.reports.append(json.loads(body))
        return 200, {}, b""

    def _handler(guest) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                guest.asked.append(self.path)
                reply = guest.replies.get(self.path, lambda _: (404, {}, b""))(body)
                if reply is None:
                    self.close_connection = True
                    return
                status, headers, content = reply
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = True

            do_POST = do_GET

            def log_message(self, *_: Any) -> None: ...

        return Handler


def evaluated_by(func: str, result: dict[str, Any], expected: dict[str, Any] | None = None, **evaluator: Any) -> Task:
    """A task with this evaluator."""
    evaluator = {"func": func, "result": result, **evaluator} | ({} if expected is None else {"expected": expected})
    spec = {"id": "t", "instruction": "", "config": [], "evaluator": evaluator}
    return Task("t", "", spec)


def file_at(path: str) -> dict[str, Any]:
    """The getter of the guest's file, kept under its own name."""
    return {"type": "vm_file", "path": path, "dest": path.rpartition("/")[2]}


def rule(**rules: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": rules}


OUTPUT = {"type": "vm_command_line", "command": ["echo"]}
