"""Find, activate, close and measure windows; open files and wait for their windows."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from http import HTTPStatus

from Xlib import X
from Xlib.error import XError

from . import files
from .messages import Request, Response
from .processes import start
from .screen import Screen

OPEN_TIMEOUT_S = 1800.0  # OSWorld's own
LOOK_INTERVAL_S = 0.1


def routes(screen: Screen) -> dict[tuple[str, str], Callable[[Request], Response]]:
    """Return the endpoints of this module."""
    return {
        ("POST", "/setup/open_file"): open_file,
        ("POST", "/setup/activate_window"): lambda request: _wmctrl(request, "a", "Window activated successfully"),
        ("POST", "/setup/close_window"): lambda request: _wmctrl(request, "c", "Window closed successfully."),
        ("POST", "/window_size"): lambda request: _window_size(screen, request),
    }


def titles() -> list[tuple[str, str]]:
    """Return each window's id and its line of `wmctrl -l`, the oldest first."""
    listing = subprocess.run(["wmctrl", "-l"], capture_output=True, text=True, errors="replace")
    return [(line.split()[0], line) for line in listing.stdout.splitlines() if line.strip()]


def exists(title: str) -> bool:
    """Return whether a window's title contains `title`, in any case."""
    return any(title.lower() in line.lower() for _, line in titles())


def open_file(request: Request) -> Response:
    """Open a file with the program for its type, or start a program; answer when its window is there."""
    path = request.json()["path"]
    full = files.path_of(path)
    if os.path.exists(full):
        command, name = ["xdg-open", full], os.path.basename(full)
    elif shutil.which(path):
        command, name = [path], path
    else:
        return Response.text(f"Application/file not found: {path}", HTTPStatus.NOT_FOUND)
    opener = start(command, False)
    deadline = time.monotonic() + OPEN_TIMEOUT_S
    while time.monotonic() < deadline:
        if any(_activated(window, line, name) for window, line in titles()):
            return Response.text("File opened and window activated successfully")
        if opener.poll():  # it failed: OSWorld's server would wait for half an hour
            message = f"{' '.join(command)} ended with status {opener.returncode}: no program for this file?"
            return Response.text(message, HTTPStatus.INTERNAL_SERVER_ERROR)
        time.sleep(LOOK_INTERVAL_S)
    return Response.text(f"Failed to find window for {name} in time", HTTPStatus.INTERNAL_SERVER_ERROR)


def _activated(window: str, line: str, name: str) -> bool:
    if name not in line and os.path.splitext(name)[0] not in line:
        return False
    return subprocess.run(["wmctrl", "-i", "-a", window], capture_output=True).returncode == 0


def _wmctrl(request: Request, action: str, done: str) -> Response:
    data = request.json()
    if not data.get("window_name"):
        return Response.text("window_name required", HTTPStatus.BAD_REQUEST)
    option = f"-{'x' if data.get('by_class') else ''}{'F' if data.get('strict') else ''}{action}"
    subprocess.run(["wmctrl", option, _shown(data["window_name"])], capture_output=True)
    return Response.text(done)


def _shown(title: str) -> str:
    """Return a title as it is here: Debian's Chromium shows its own name where tasks look for Google Chrome's."""
    return title if exists(title) else title.replace("Google Chrome", "Chromium")


def _window_size(screen: Screen, request: Request) -> Response:
    """Answer with the size of the first window whose class contains `app_class_name`."""
    wanted = request.form()["app_class_name"].decode()
    with screen.lock:
        atom = screen.display.intern_atom("_NET_CLIENT_LIST")
        clients = screen.root.get_full_property(atom, X.AnyPropertyType)
        for window_id in clients.value if clients else ():
            window = screen.display.create_resource_object("window", window_id)
            try:
                if any(wanted in name for name in window.get_wm_class() or ()):
                    geometry = window.get_geometry()
                    return Response.json({"width": geometry.width, "height": geometry.height})
            except XError:  # it closed meanwhile
                continue
    return Response.json({"message": f"no window of class {wanted}"}, HTTPStatus.NOT_FOUND)
