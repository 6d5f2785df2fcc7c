"""A desktop whose policy has taken it over: OSWorld's guest protocol, answering whatever an attack wants.

It keeps what it is asked, and what code in the verdict's sandbox reports to it at `/report`: its one way out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from arpo_verl.types import Size, Task
from support.pictures import png
from support.scripted_guest import DROP, Guest

SIZE = Size(200, 150)
Reply = tuple[int, dict[str, str], bytes]


def as_json(**fields: Any) -> Reply:
    return 200, {}, json.dumps(fields).encode()


def printed(text: str) -> Reply:
    """A command's output."""
    return as_json(status="success", output=text, error="", returncode=0)


class HostileGuest(Guest):
    """The guest, and OSWorld's provider of it. `files` is what is at which path; `replies` go before them."""

    def __init__(self) -> None:
        super().__init__()
        shot = png(size=SIZE)
        self.ports = (1, 1)
        self.files: dict[str, bytes] = {}
        self.reports: list[Any] = []
        self.replies: dict[str, Callable[[bytes], Reply | None]] = {
            "/screenshot": lambda body: (200, {}, shot),
            "/terminal": lambda body: as_json(output="", status="success"),
            "/execute": lambda body: printed("Linux"),
            "/file": self._file,
            "/report": self._report,
        }

    def start(self) -> None:
        if self.server is None:
            super().start()

    def reset(self) -> None:
        """The same one goes on."""

    def reply(self, path: str, body: bytes) -> Any:
        return self.replies.get(path, lambda _: (404, {}, b""))(body) or DROP

    def _file(self, body: bytes) -> Reply:
        path = body.decode().partition("file_path=")[2].replace("%2F", "/")
        return (200, {}, self.files[path]) if path in self.files else (404, {}, b"no such file")

    def _report(self, body: bytes) -> Reply:
        self.reports.append(json.loads(body))
        return 200, {}, b""


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
