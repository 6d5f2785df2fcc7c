"""Mock web applications that a desktop serves to itself: read from this host, handed over as one file in memory."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.errors import DesktopSetupError
from arpo_verl.untrusted import RefusedFileError, read_regular

MAX_BYTES = 128 << 20
"""Of all files of a task's applications; a built one has 1 to 5 MB."""
START_PAGE = "index.html"
_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True)
class WebApp:
    """A built single-page application."""

    name: str
    folder: Path
    """With `index.html`, as `npm run build` leaves it."""
    port: int
    """Of the desktop's loopback."""


def pack(apps: Sequence[WebApp]) -> bytes:
    """The applications as `desktop/guest/web_apps.py: unpack` takes them: an index in JSON, and the files behind it.

    Raises:
        DesktopSetupError: one is not there or not built, or they are too large.
    """
    index, contents, size = [], [], 0
    for app in apps:
        if not (app.folder / START_PAGE).is_file():
            raise DesktopSetupError(
                f"the web application {app.name} must be built in {app.folder}, which has no {START_PAGE}; run "
                "`npm install && npm run build` beside it, and keep it where the desktops' hosts see it"
            )
        files = []
        for path in sorted(app.folder.rglob("*")):
            if not path.is_file() or path.is_symlink():
                continue
            content = _read(path, MAX_BYTES - size)
            files.append((path.relative_to(app.folder).as_posix(), size, size + len(content)))
            contents.append(content)
            size += len(content)
        index.append({"name": app.name, "port": app.port, "files": files})
    head = json.dumps(index).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *contents])


def _read(path: Path, bytes_left: int) -> bytes:
    """A file of an application, which is no bigger than what is left of `MAX_BYTES`."""
    try:
        return read_regular(path, bytes_left)
    except RefusedFileError as error:
        raise DesktopSetupError(
            f"web applications of a task must be regular files of {MAX_BYTES >> 20} MiB at most, but {error}"
        ) from error


def in_memory(name: str, content: bytes) -> int:
    """The descriptor of a file in memory with this content, to be closed by the caller."""
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
