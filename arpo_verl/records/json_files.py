"""JSON as others wrote it: whole files, and files that grow by a line at a time, each line read once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from arpo_verl import untrusted
from arpo_verl.untrusted import MOST_JSON_BYTES, open_regular, read_regular

_LARGEST = 1e100
"""Of numbers that were written: nothing that a run measures comes near, and sums of them stay finite."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; NaN, the infinities and endless whole numbers, which a browser's JSON does not know, become None.

    Raises:
        ValueError: as `untrusted.parse_json`.
    """
    return untrusted.parse_json(text, odd_number=lambda _: None)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ValueError: it holds something else.
    """
    content = parse_json(read_regular(path, MOST_JSON_BYTES))
    if not isinstance(content, dict):
        raise ValueError(f"must hold an object, got a {type(content).__name__}")
    return content


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one a line; none where there is no file."""
    return GrowingFile(path).read_new(forget=lambda: None)


def append_objects(path: Path, objects: Iterable[Mapping[str, Any]]) -> None:
    """Append objects, one a line.

    Raises:
        OSError: the disk refuses.
    """
    lines = "".join(json.dumps(value, default=str) + "\n" for value in objects)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        # After a line that a killed run left unfinished, begin another.
        if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            lines = "\n" + lines
        file.write(lines.encode())


def dump_json(value: Any) -> bytes:
    """Compact JSON in ASCII: whatever a model wrote, lone surrogates and U+2028 too, is safe to encode and to embed."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def as_number(value: object) -> float | None:
    """A number as it stands, None for anything else; a bool is none, and so is what sums would not hold."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return value
    return None


class GrowingFile:
    """A file of JSON objects, one a line, to which another process appends."""

    def __init__(self, path: Path):
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._offset = 0

    def read_new(self, forget: Callable[[], object]) -> list[dict[str, Any]]:
        """The objects appended since the last call; lines that hold none are passed over, a torn last one waits.

        Args:
            forget: called before, where the file is another one than it was: all of it is then read.
        """
        try:
            if self._is_read(self.path.stat()):
                return []
            with open_regular(self.path) as file:
                return self._read(file, forget)
        except OSError:  # not written yet, or taken away: what was read stands
            return []

    def _is_read(self, status: os.stat_result) -> bool:
        return (status.st_dev, status.st_ino, status.st_size) == (*(self._identity or (0, 0)), self._offset)

    def _read(self, file: BinaryIO, forget: Callable[[], object]) -> list[dict[str, Any]]:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity or status.st_size < self._offset:
            if self._identity is not None:
                forget()
            self._identity, self._offset = identity, 0
        file.seek(self._offset)
        rows = []
        while line := file.readline(MOST_JSON_BYTES):
            row = _object(line)
            # No beginning of an object is one: a last line that is one only lacks its newline.
            if row is None and not line.endswith(b"\n") and len(line) < MOST_JSON_BYTES:
                break
            self._offset += len(line)
            if row is not None:
                rows.append(row)
        return rows


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
