"""Name and convert the formats in which screenshots are kept and shown. Pure."""

from __future__ import annotations

import io

from arpo_verl.lib.images import read_image

_SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp"}


def as_png(screenshot: bytes) -> bytes:
    """Return the screenshot as a PNG, unchanged if it is one already.

    Raises:
        ImageError: it is not a picture.
    """
    if image_suffix(screenshot) == "png":
        return screenshot
    buffer = io.BytesIO()
    read_image(screenshot).save(buffer, format="PNG")
    return buffer.getvalue()


def image_suffix(screenshot: bytes) -> str:
    """Return the file name's ending for the image's format; `bin` if desktops do not send it."""
    return next((suffix for magic, suffix in _SUFFIXES.items() if screenshot.startswith(magic)), "bin")
