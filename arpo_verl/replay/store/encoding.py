"""The formats in which screenshots are kept and shown. Pure."""

from __future__ import annotations

import io

from arpo_verl.images import read_image

_SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp"}


def as_png(screenshot: bytes) -> bytes:
    """The screenshot as it is where it is a PNG, else as one.

    Raises:
        ImageError: it is no picture.
    """
    if image_suffix(screenshot) == "png":
        return screenshot
    buffer = io.BytesIO()
    read_image(screenshot).save(buffer, format="PNG")
    return buffer.getvalue()


def image_suffix(screenshot: bytes) -> str:
    """The file name's ending for the image's format; `bin` for none that a desktop sends."""
    return next((suffix for magic, suffix in _SUFFIXES.items() if screenshot.startswith(magic)), "bin")
