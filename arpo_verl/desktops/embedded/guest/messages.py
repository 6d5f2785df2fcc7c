"""Requests and responses of the guest server."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from typing import IO, Any
from urllib.parse import parse_qs


@dataclass(frozen=True)
class Request:
    """One request, with its body as it came."""

    content_type: str
    body: bytes = field(repr=False)

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object.

        Raises:
            ValueError: the body is no JSON object.
        """
        value = json.loads(self.body or b"{}")
        if not isinstance(value, dict):
            raise ValueError(f"the body must be a JSON object, got {type(value).__name__}")
        return value

    def form(self) -> dict[str, bytes]:
        """Return the fields of a form, url-encoded or multipart, by name."""
        if self._header().get_content_type() == "multipart/form-data":
            return {_name_of(head): body for head, body in self._parts()}
        return {name: values[-1].encode() for name, values in parse_qs(self.body.decode()).items()}

    def files(self) -> list[tuple[str, str, bytes]]:
        """Return the name, content type and bytes of each file of a multipart form."""
        named = [(head.get_filename(), head.get("Content-Type", ""), body) for head, body in self._parts()]
        return [(name, kind or "application/octet-stream", body) for name, kind, body in named if name]

    def _header(self) -> Message:
        header = Message()
        header["Content-Type"] = self.content_type
        return header

    def _parts(self) -> list[tuple[Message, bytes]]:
        return _parts(self.body, str(self._header().get_param("boundary")).encode())


@dataclass(frozen=True)
class Response:
    """One answer: `body`, or the bytes that `file` had when it was opened."""

    status: int
    content_type: str
    body: bytes = field(repr=False)
    file: IO[bytes] | None = None

    @classmethod
    def json(cls, value: Any, status: int = HTTPStatus.OK) -> Response:
        """Make an answer in JSON."""
        return cls(status, "application/json", json.dumps(value).encode())

    @classmethod
    def text(cls, value: str, status: int = HTTPStatus.OK) -> Response:
        """Make an answer in plain text."""
        return cls(status, "text/plain; charset=utf-8", value.encode(errors="replace"))

    @classmethod
    def error(cls, status: int, message: str) -> Response:
        """Make an error in the fields that OSWorld's client reads."""
        return cls.json({"status": "error", "message": message, "error": message}, status)


def _name_of(head: Message) -> str:
    name = head.get_param("name", header="Content-Disposition")
    if not isinstance(name, str):
        raise ValueError("a part of the multipart form has no name")
    return name


def _parts(body: bytes, boundary: bytes) -> list[tuple[Message, bytes]]:
    """Split a multipart body into headers and bytes (RFC 2046: the line end before a delimiter belongs to it)."""
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary)
    parts = []
    for piece in pieces[1:-1]:
        head, _, content = piece.partition(b"\r\n\r\n")
        headers = Message()
        for line in head.decode().strip().split("\r\n"):
            key, _, value = line.partition(":")
            headers[key.strip()] = value.strip()
        parts.append((headers, content))
    return parts
