"""Read files and text that others may have made: within bounds, checked, and safe to print.

People exchange stores, records, recipes, scripts and task files. Whatever reads one accepts no pipe, no device and
nothing of unbounded size or depth. It builds no path from the content, and prints none of it unchanged.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 1 << 30
"""Largest file that is read whole. A sparse file may claim any size."""
MOST_JSON_BYTES = 32 << 20
"""Largest JSON text that is parsed. The shortest values take 25 times the memory of their text."""
MOST_DEPTH = 100
"""Most levels of JSON's lists and objects: code that reads or copies them recurses once a level."""
MOST_DIGITS = 20
"""Most digits of a whole number in JSON: 64 bits have 20, and a float, which many become, has at most 308."""


class RefusedFileError(OSError):
    """The file is not a regular file, or is too large to read."""

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


@contextmanager
def open_regular(path: Path, most_bytes: int = MOST_BYTES) -> Iterator[BinaryIO]:
    """Open a file that others may have put there. It must not be a link, which could lead anywhere, or a pipe, which
    would hang the reader. Resolve a path that the user named before, as `read_text` does.

    Raises:
        OSError: it does not exist, is not such a file, or has more bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise RefusedFileError(errno.ELOOP, "is a link, which we do not follow; copy the file itself", path) from error
    status = os.fstat(descriptor)
    why = None
    if not stat.S_ISREG(status.st_mode):
        why = "is not a regular file; put a file in its place"
    elif status.st_size > most_bytes:
        why = f"is larger than {most_bytes} bytes, the most that we read"
    if why is not None:
        os.close(descriptor)
        raise RefusedFileError(errno.EINVAL, why, path)
    with open(descriptor, "rb") as file:
        yield file


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Read such a file.

    Raises:
        OSError: in the cases of `open_regular`.
    """
    with open_regular(path, most_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_text(path: Path, most_bytes: int) -> str:
    """Read the text of a file that the user named, also through a link.

    Raises:
        OSError: in the cases of `open_regular`.
        UnicodeDecodeError: it is not UTF-8 text.
    """
    try:
        file = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: Python 3.12 and older, for links in a circle
        if isinstance(error, OSError) and error.errno != errno.ELOOP:
            raise
        raise RefusedFileError(errno.ELOOP, "is a link that leads back to itself; name a file", path) from error
    return read_regular(file, most_bytes).decode("utf-8")


def parse_json(text: str | bytes, odd_number: Callable[[str], Any] | None = None, *, unique_keys: bool = False) -> Any:
    """Parse JSON within bounds.

    Args:
        odd_number: returns a replacement for a number that is not finite or has more than `MOST_DIGITS` digits. By
            default the first kind stays as it is, and the second is refused.
        unique_keys: whether to refuse an object with a key twice, of which only the last would count.

    Raises:
        ValueError: it is not JSON, is longer than `MOST_JSON_BYTES` or is nested deeper than `MOST_DEPTH`.
    """
    if len(text) > MOST_JSON_BYTES:
        raise ValueError(f"it is longer than {MOST_JSON_BYTES >> 20} MiB")

    def integer(digits: str) -> Any:
        if len(digits.removeprefix("-")) <= MOST_DIGITS:
            return int(digits)
        if odd_number is None:
            raise ValueError(f"it has a number of more than {MOST_DIGITS} digits")
        return odd_number(digits)

    def real(digits: str) -> Any:
        value = float(digits)
        return value if math.isfinite(value) or odd_number is None else odd_number(digits)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if repeated := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
            raise ValueError(f"it has the key {repeated[0]!r:.80} twice in one object; remove one of them")
        return dict(pairs)

    hook = unique if unique_keys else None
    try:
        value = json.loads(
            text, parse_int=integer, parse_float=real, parse_constant=odd_number or float, object_pairs_hook=hook
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if is_deeper(value, MOST_DEPTH):
        raise ValueError("it is nested too deeply")
    return value


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether lists and objects are nested in more levels than these."""
    level = [value]
    for _ in range(levels):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [one for values in inner for one in values if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


def encodable(text: str) -> str:
    """Return a text with `?` in place of each half of a character, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """Return one line that neither moves a terminal's cursor nor ends a comment. Unprintable characters become `?`."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def printable_lines(text: str) -> str:
    """Apply `printable` to each line of a text."""
    return "\n".join(map(printable, text.split("\n")))
