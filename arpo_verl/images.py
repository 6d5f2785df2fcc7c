"""Pictures that came from a desktop, decoded within bounds: the only place on the host that opens one.

A desktop runs whatever the policy types, so its screenshots are a stranger's files: one of 400 kB may decode to 484 MB,
and a name such as `.png` says nothing about which of Pillow's forty decoders, Ghostscript among them, it would reach.
"""

from __future__ import annotations

import io

from PIL import Image

from arpo_verl.errors import ImageError
from arpo_verl.types import Size

LARGEST = Size(7680, 4320)
"""The largest screen that a recipe may ask for."""
MAX_BYTES = 64 << 20
"""A screen of 7680x4320 as PNG has 10 to 40 MB; noise of 4096x4096, the largest embedded screen, has 50."""
MAX_PIXELS = LARGEST.width * LARGEST.height
SENT = ("PNG", "JPEG")
"""Formats of what a desktop sends."""
KEPT = (*SENT, "WEBP")
"""Formats of what the store of successes keeps."""


def image_size(data: bytes, formats: tuple[str, ...] = KEPT) -> Size:
    """Width and height by the header; no pixel is decoded.

    Raises:
        ImageError: see `read_image`.
    """
    return Size(*_open(data, formats).size)


def read_image(data: bytes, formats: tuple[str, ...] = KEPT) -> Image.Image:
    """The picture in RGB, whole.

    Args:
        data: the file's bytes.
        formats: Pillow's names of the formats that it may have.

    Raises:
        ImageError: it has more than `MAX_BYTES` bytes or `MAX_PIXELS` pixels, another format, or is broken.
    """
    image = _open(data, formats)
    try:
        return image.convert("RGB")
    except Exception as error:  # decoders of broken data raise OSError, SyntaxError, ValueError, zlib.error, ...
        raise ImageError(f"a picture of {len(data)} bytes is broken: {type(error).__name__}: {error}") from error


def _open(data: bytes, formats: tuple[str, ...]) -> Image.Image:
    if len(data) > MAX_BYTES:
        raise ImageError(f"a picture must have at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except Exception as error:
        raise ImageError(f"a picture must be {' or '.join(formats)}, got {len(data)} bytes: {error}") from error
    if image.width * image.height > MAX_PIXELS:
        raise ImageError(f"a picture must have at most {MAX_PIXELS} pixels, got {image.width}x{image.height}")
    return image
