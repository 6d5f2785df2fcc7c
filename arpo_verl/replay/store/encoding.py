"""Screenshots made smaller without losing a pixel. Pure."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from arpo_verl.errors import ImageError
from arpo_verl.images import read_image

_SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp"}


def encode_screenshots(screenshots: Sequence[bytes], encoding: str) -> list[bytes]:
    """Each screenshot as `replay.screenshot_encoding` says; equal ones are encoded once, others side by side."""
    if encoding == "as_sent":
        return list(screenshots)
    unique = list(dict.fromkeys(screenshots))
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # Pillow's encoder lets go of the interpreter's lock
        encoded = dict(zip(unique, threads.map(smallest_lossless, unique), strict=True))
    return [encoded[screenshot] for screenshot in screenshots]


def smallest_lossless(screenshot: bytes) -> bytes:
    """The screenshot as lossless WebP where that is smaller, else as it is.

    A desktop's PNG of 1920x1080 shrinks to about a quarter and then decodes faster, for half a second of one core. The
    result is decoded again and compared: what the processor will see is the same, or the bytes stay as they were.
    """
    try:
        image = read_image(screenshot)
    except ImageError:
        return screenshot  # not ours to judge: whoever uses it says what is wrong with it
    buffer = io.BytesIO()
    image.save(buffer, format="WEBP", lossless=True, method=4, quality=75)
    encoded = buffer.getvalue()
    if len(encoded) >= len(screenshot):
        return screenshot
    again = read_image(encoded)
    return encoded if again.size == image.size and again.tobytes() == image.tobytes() else screenshot


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
