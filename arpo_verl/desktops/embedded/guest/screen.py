"""The screen: screenshots with the pointer, its size, and the wallpaper.

The wallpaper is a picture on the root window; its setting is where GNOME's programs and OSWorld's evaluators look.
GNOME Shell would also repaint when another program changes that setting; this session only reports it.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from PIL import Image, ImageChops
from Xlib.display import Display

from . import files, layout
from .framebuffer import Framebuffer
from .messages import Request, Response

COMPRESS_LEVEL = 1
"""The PNG's level: at 1 a plain desktop already shrinks 40-fold."""
WALLPAPER = ("org.gnome.desktop.background", "picture-uri")


class Screen:
    """The guest server's connection to the display, and the X server's mapped frame buffer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # python-xlib's connection, and a consistent look at the buffer
        self.display = Display(layout.DISPLAY)
        self.root = self.display.screen().root
        self.display.xfixes_query_version()
        self._framebuffer = Framebuffer()
        self.size = self._framebuffer.size
        self._cursors: dict[int, tuple[Image.Image, Image.Image]] = {}
        self._last: tuple[object, bytes] = None, b""

    def png(self) -> bytes:
        """Return the screen with the pointer, RGB; the same file again while nothing changes."""
        pixels, cursor = self._look()
        seen = pixels, cursor.cursor_serial, cursor.x, cursor.y
        last, file = self._last
        if seen != last:
            file = self._encode(pixels, cursor)
            self._last = seen, file
        return file

    def _look(self) -> tuple[bytes, Any]:
        with self.lock:
            self.display.grab_server()
            self.display.sync()  # every request that came before ours is drawn, none is half drawn
            pixels = self._framebuffer.pixels()
            self.display.ungrab_server()
            return pixels, self.display.xfixes_get_cursor_image(self.root)

    def _encode(self, pixels: bytes, cursor: Any) -> bytes:
        image = Image.frombuffer("RGB", self.size, pixels, "raw", "BGRX", self._framebuffer.stride, 1)
        file = io.BytesIO()
        self._with_cursor(image, cursor).save(file, "PNG", compress_level=COMPRESS_LEVEL)
        return file.getvalue()

    def _with_cursor(self, image: Image.Image, cursor: Any) -> Image.Image:
        """Lay the pointer over the image; its colours come multiplied by their opacity."""
        if cursor.cursor_serial not in self._cursors:
            self._cursors = {cursor.cursor_serial: _cursor_layers(cursor)}
        color, transparency = self._cursors[cursor.cursor_serial]
        left, top = cursor.x - cursor.xhot, cursor.y - cursor.yhot
        box = (left, top, left + cursor.width, top + cursor.height)
        under = image.crop(box)  # black beyond the screen's edge, which paste ignores
        image = image.copy() if image.readonly else image
        image.paste(ImageChops.add(color, ImageChops.multiply(under, transparency)), box[:2])
        return image

    def paint_root(self, image: Image.Image) -> None:
        """Put the image, scaled to the screen, on the root window."""
        image = image.convert("RGB").resize(self.size)
        with self.lock:
            pixmap = self.root.create_pixmap(*self.size, self.display.screen().root_depth)
            context = pixmap.create_gc(foreground=0, background=0)
            pixmap.put_pil_image(context, 0, 0, image)
            self.root.change_attributes(background_pixmap=pixmap)
            self.root.clear_area(0, 0, 0, 0)
            context.free()
            pixmap.free()  # the root keeps it
            self.display.sync()


def _cursor_layers(cursor: Any) -> tuple[Image.Image, Image.Image]:
    data = struct.pack(f"<{len(cursor.cursor_image)}I", *cursor.cursor_image)
    blue, green, red, alpha = Image.frombytes("RGBA", (cursor.width, cursor.height), data).split()
    transparency = ImageChops.invert(alpha)
    return Image.merge("RGB", (red, green, blue)), Image.merge("RGB", (transparency,) * 3)


def routes(screen: Screen) -> dict[tuple[str, str], Callable[[Request], Response]]:
    """Return the endpoints of this module."""
    painted: list[str] = []

    def screenshot(request: Request) -> Response:
        return Response(HTTPStatus.OK, "image/png", screen.png())

    def screen_size(request: Request) -> Response:
        return Response.json({"width": screen.size[0], "height": screen.size[1]})

    def cursor_position(request: Request) -> Response:
        with screen.lock:
            pointer = screen.root.query_pointer()
        return Response.json([pointer.root_x, pointer.root_y])

    def wallpaper(request: Request) -> Response:
        path = _wallpaper_setting() or (painted[-1] if painted else None)
        if path is None:
            return Response.text("Wallpaper file not found", HTTPStatus.NOT_FOUND)
        return files.serve(path, "image/png")

    def change_wallpaper(request: Request) -> Response:
        path = files.path_of(request.json()["path"])
        screen.paint_root(Image.open(path))
        painted.append(path)
        # This fails if GNOME's schemas are not installed; then nothing can ask for the setting either.
        subprocess.run(["gsettings", "set", *WALLPAPER, Path(path).as_uri()], capture_output=True)
        return Response.text("Wallpaper changed successfully")

    return {
        ("GET", "/screenshot"): screenshot,
        ("POST", "/screen_size"): screen_size,
        ("GET", "/cursor_position"): cursor_position,
        ("POST", "/wallpaper"): wallpaper,
        ("POST", "/setup/change_wallpaper"): change_wallpaper,
    }


def _wallpaper_setting() -> str | None:
    """Return the file that the user's setting names, if it exists; the default's is not installed."""
    answer = subprocess.run(["gsettings", "get", *WALLPAPER], capture_output=True, text=True)
    path = unquote(urlsplit(answer.stdout.strip().strip("'")).path)
    return path if os.path.isfile(path) else None
