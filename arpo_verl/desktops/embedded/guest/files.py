"""Read, write and list files of the guest."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from . import layout
from .messages import Request, Response

MAX_UNSIZED = 1 << 20
"""Most bytes read from a file whose reported size is 0."""
_OWN_TROUBLE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
MAX_DEPTH = 200
"""How deep the listing of folders goes: the program that reads the answer has a limit too."""


def routes() -> dict[tuple[str, str], Callable[[Request], Response]]:
    """Return the endpoints of this module."""
    return {
        ("POST", "/file"): read,
        ("POST", "/setup/upload"): upload,
        ("POST", "/list_directory"): list_directory,
        ("POST", "/desktop_path"): lambda request: Response.json(
            {"desktop_path": os.path.join(layout.HOME, "Desktop")}
        ),
    }


def path_of(text: str) -> str:
    """Expand `~` and variables in a path, relative to the home."""
    return os.path.join(layout.HOME, os.path.expandvars(os.path.expanduser(text)))


def read(request: Request) -> Response:
    """Answer with the bytes of the file `file_path`."""
    form = request.form()
    if "file_path" not in form:
        return Response.json({"error": "file_path is required"}, HTTPStatus.BAD_REQUEST)
    return serve(path_of(form["file_path"].decode()), "application/octet-stream")


def serve(path: str, content_type: str) -> Response:
    """Answer with the bytes of a file, which it reads while it sends. Folders, pipes and the like are not found.

    A status of 500 means that this guest cannot serve files, never that the user changed this one.
    """
    try:
        file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)
    except PermissionError as error:
        return Response.json({"error": f"Failed to serve file: {error}"}, HTTPStatus.FORBIDDEN)
    except OSError as error:
        if error.errno in _OWN_TROUBLE:
            raise
        return _not_found(path)
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return Response(HTTPStatus.OK, content_type, b"", file)
    with file:  # files of the kernel report the size 0
        if stat.S_ISREG(status.st_mode):
            return Response(HTTPStatus.OK, content_type, file.read(MAX_UNSIZED))
    return _not_found(path)


def _not_found(path: str) -> Response:
    return Response.json({"error": f"File not found: {path}"}, HTTPStatus.NOT_FOUND)


def upload(request: Request) -> Response:
    """Write `file_data` to `file_path`, making its folders."""
    form = request.form()
    if "file_path" not in form or "file_data" not in form:
        return Response.json({"error": "file_path and file_data are required"}, HTTPStatus.BAD_REQUEST)
    path = path_of(form["file_path"].decode())
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe has no reader: ENXIO
        with open(os.open(path, flags, 0o666), "wb") as file:
            file.write(form["file_data"])
    except OSError as error:
        return Response.json({"error": f"Failed to upload file: {error}"}, HTTPStatus.INTERNAL_SERVER_ERROR)
    return Response.text(f"File Uploaded: {len(form['file_data'])} bytes")


def list_directory(request: Request) -> Response:
    """Answer with the tree below `path`."""
    path = path_of(request.json()["path"])
    if not os.path.isdir(path):
        return Response.json({"error": "The provided path is not a directory"}, HTTPStatus.BAD_REQUEST)
    return Response.json({"directory_tree": _tree(path)})


def _tree(directory: str, depth: int = 0) -> dict[str, Any]:
    """List the tree as OSWorld's server does, but sorted, and with a link to a folder as a file: it may lead up."""
    if depth == MAX_DEPTH:
        return {"error": f"more than {MAX_DEPTH} folders deep"}
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        return {"error": str(error)}
    children = [
        _tree(entry.path, depth + 1) if entry.is_dir(follow_symlinks=False) else {"type": "file", "name": entry.name}
        for entry in entries
    ]
    return {"type": "directory", "name": os.path.basename(directory), "children": children}
