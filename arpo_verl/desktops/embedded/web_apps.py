"""Mock web applications of a desktop, read from this host and passed on as one file in memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.errors import DesktopSetupError
from arpo_verl.lib.untrusted import RefusedFileError, read_regular

MAX_BYTES = 128 << 20
"""Most bytes of all files of a task's applications; a built one has 1 to 5 MB."""
START_PAGE = "index.html"
_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True)
class WebApp:
    """A built single-page application."""

    name: str
    folder: Path
    """The folder with `index.html`, as `npm run build` makes it."""
    port: int
    """The port on the desktop's loopback."""


def pack(apps: Sequence[WebApp]) -> bytes:
    """Pack the applications for `desktops/embedded/guest/web_apps.py: unpack`: an index in JSON, then the files.

    Raises:
        DesktopSetupError: one is missing or not built, or they are too large.
    """
    index, contents, size = [], [], 0
    for app in apps:
        if not (app.folder / START_PAGE).is_file():
            raise DesktopSetupError(
                f"the web application {app.name} is not built: {app.folder} has no {START_PAGE}; run "
                "`npm install && npm run build` beside it, on a disk that the desktops' hosts can read"
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
    """Read a file of an application, if it fits into what is left of `MAX_BYTES`."""
    try:
        return read_regular(path, bytes_left)
    except RefusedFileError as error:
        raise DesktopSetupError(
            f"a task's web applications must be regular files of at most {MAX_BYTES >> 20} MiB together, but {error}"
        ) from error
