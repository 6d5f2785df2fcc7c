"""Reads JSON of others: whole files, and files that grow line by line, each line once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Generic, TypeVar

import msgspec

from arpo_verl.lib import untrusted
from arpo_verl.lib.untrusted import MOST_JSON_BYTES, open_regular, read_regular

_LARGEST = 1e100
"""Largest number that we accept: no measurement of a run comes near it, and sums stay finite."""
_END = 1 << 53
"""Whole numbers must be below this, so that a browser and a chart's floats hold them exactly."""
Number = Annotated[float, msgspec.Meta(gt=-_LARGEST, lt=_LARGEST)]
Integer = Annotated[int, msgspec.Meta(gt=-_END, lt=_END)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=_END)]

T = TypeVar("T")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; NaN, infinities and whole numbers that a browser's JSON cannot hold become None.

    Raises:
        ValueError: as `untrusted.parse_json`.
    """
    return untrusted.parse_json(text, odd_number=lambda _: None)


def read_json(path: Path, kind: type[T]) -> T:
    """Read a JSON file as a `kind`: a struct, a dataclass or another type of msgspec. It ignores unknown fields.

    Raises:
        OSError: the file cannot be read, or is no regular file.
        ValueError: the file has something else. The message names the field and the file.
    """
    try:
        return msgspec.convert(parse_json(read_regular(path, MOST_JSON_BYTES)), kind)
    except ValueError as error:
        raise ValueError(f"{error}, in {path}") from error


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """Return what a file has of this `kind`, one a line, without other lines; empty without a file."""
    return GrowingFile(path, kind).read_new(forget=lambda: None)


def append_objects(path: Path, objects: Iterable[Mapping[str, Any]]) -> None:
    """Append objects, one a line.

    Raises:
        OSError: the file cannot be written.
    """
    lines = "".join(json.dumps(value, default=str) + "\n" for value in objects)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        # Begin a new line if a killed run left the last one unfinished.
        if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            lines = "\n" + lines
        file.write(lines.encode())


def dump_json(value: Any) -> bytes:
    """Return compact JSON in ASCII, which is safe to encode and embed even with lone surrogates and U+2028."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def as_number(value: object) -> float | None:
    """Return a number unchanged, and None for anything else, such as a bool or a number too large for sums."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return value
    return None


class GrowingFile(Generic[T]):
    """A file with a JSON object of this `kind` in each line, to which another process appends."""

    def __init__(self, path: Path, kind: type[T]):
        self.path = path
        self._kind = kind
        self._identity: tuple[int, int] | None = None
        self._offset = 0

    def read_new(self, forget: Callable[[], object]) -> list[T]:
        """Return the objects appended since the last call. It skips other lines; an unfinished last line waits.

        Args:
            forget: called first if the file was replaced by another one, which is then read from the start.
        """
        try:
            if self._is_read(self.path.stat()):
                return []
            with open_regular(self.path) as file:
                return self._read(file, forget)
        except OSError:  # not written yet, or removed: we keep what we have read
            return []

    def _is_read(self, status: os.stat_result) -> bool:
        return (status.st_dev, status.st_ino, status.st_size) == (*(self._identity or (0, 0)), self._offset)

    def _read(self, file: BinaryIO, forget: Callable[[], object]) -> list[T]:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity or status.st_size < self._offset:
            if self._identity is not None:
                forget()
            self._identity, self._offset = identity, 0
        file.seek(self._offset)
        rows = []
        while line := file.readline(MOST_JSON_BYTES):
            row = read_line(line, self._kind)
            # The start of an object never parses as one, so a last line that parses only lacks its newline.
            if row is None and not line.endswith(b"\n") and len(line) < MOST_JSON_BYTES:
                break
            self._offset += len(line)
            if row is not None:
                rows.append(row)
        return rows


def read_line(line: bytes, kind: type[T]) -> T | None:
    """Read a line of JSON as a `kind`; None if it is something else."""
    try:
        return msgspec.convert(parse_json(line), kind)
    except ValueError:
        return None
