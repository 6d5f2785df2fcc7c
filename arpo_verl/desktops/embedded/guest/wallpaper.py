"""The wallpaper is a picture on the root window; its setting is where GNOME's programs and OSWorld's evaluators look.

GNOME Shell would also repaint when another program changes that setting; this session only reports it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote, urlsplit

from PIL import Image

from . import files
from .messages import Request, Response
from .screen import Screen

SETTING = ("org.gnome.desktop.background", "picture-uri")


def routes(screen: Screen) -> dict[tuple[str, str], Callable[[Request], Response]]:
    """Return the endpoints of this module."""
    painted: list[str] = []

    def wallpaper(request: Request) -> Response:
        path = _setting() or (painted[-1] if painted else None)
        if path is None:
            return Response.text("Wallpaper file not found", HTTPStatus.NOT_FOUND)
        return files.serve(path, "image/png")

    def change_wallpaper(request: Request) -> Response:
        path = files.path_of(request.json()["path"])
        screen.paint_root(Image.open(path))
        painted.append(path)
        # This fails if GNOME's schemas are not installed; then nothing can ask for the setting either.
        subprocess.run(["gsettings", "set", *SETTING, Path(path).as_uri()], capture_output=True)
        return Response.text("Wallpaper changed successfully")

    return {("POST", "/wallpaper"): wallpaper, ("POST", "/setup/change_wallpaper"): change_wallpaper}


def _setting() -> str | None:
    """Return the file that the user's setting names, if it exists; the default's is not installed."""
    answer = subprocess.run(["gsettings", "get", *SETTING], capture_output=True, text=True)
    path = unquote(urlsplit(answer.stdout.strip().strip("'")).path)
    return path if os.path.isfile(path) else None
