"""Decode pictures from a desktop within bounds. No other code on the host opens one.

A desktop runs whatever the policy types, so its screenshots are untrusted: a file of 400 kB may decode to 484 MB, and a
name such as `.png` does not show which of Pillow's forty decoders, among them Ghostscript, would open it.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import UUID

from PIL import ExifTags, Image

from arpo_verl.errors import ImageError
from arpo_verl.types import Size

LARGEST = Size(7680, 4320)
"""The largest screen that a recipe may ask for."""
MAX_BYTES = 64 << 20
"""A PNG of a 7680x4320 screen has 10 to 40 MB; noise at 4096x4096, the largest embedded screen, has 50."""
MAX_PIXELS = LARGEST.width * LARGEST.height
MAX_RATIO = 200
"""Most times that the longer side is the shorter one, as in Qwen-VL's processors (`smart_resize`, transformers 5.9)."""
MAX_SCANS = 64
"""Most scans of a progressive JPEG; encoders write about ten. One of 50 bytes costs a pass over all pixels, 12 ms."""
MAX_PARTS = 20_000
"""Most chunks of a PNG, or segments of a JPEG before its first scan. Pillow takes 3 us for each; some have 4 bytes."""
MAX_PROFILES = 8
"""Most profiles of a PNG, which may have one. Each is unpacked with the header, 1 KB to 1 MB, in 2 ms."""
SENT = ("PNG", "JPEG")
"""Formats that a desktop may send."""
KEPT = (*SENT, "WEBP")
"""Formats that the store of successes keeps."""


def image_size(data: bytes, formats: tuple[str, ...] = KEPT) -> Size:
    """Return width and height from the header, without decoding a pixel.

    Raises:
        ImageError: see `read_image`.
    """
    return Size(*_open(data, formats).size)


def read_image(data: bytes, formats: tuple[str, ...] = KEPT) -> Image.Image:
    """Return the whole picture in RGB.

    Args:
        data: the file's bytes.
        formats: accepted formats, by Pillow's names.

    Raises:
        ImageError: it has more than `MAX_BYTES` bytes or `MAX_PIXELS` pixels, another format or a shape that no screen
            has, or it is broken.
    """
    image = _open(data, formats)
    try:
        return image.convert("RGB")
    except Exception as error:  # decoders of broken data raise OSError, SyntaxError, ValueError, zlib.error, ...
        raise ImageError(f"a picture of {len(data)} bytes is broken: {type(error).__name__}: {error}") from error


class LazyImage(Image.Image):
    """A picture in RGB that is read and decoded when a pixel is first needed: 1920x1080 has 6.2 MB of pixels.

    Its EXIF `ImageID` is its content's UUID, by which vLLM's cache of processed images finds it without a pixel
    (0.24, `multimodal/hasher.py: MultiModalHasher.serialize_item`). A newer vLLM first copies each image of a request
    (0.32, `multimodal/image.py: normalize_image`), so a copy is not decoded either.

    Args:
        size: size in pixels.
        id: UUID of the content; see `content_id`.
        read: returns the file's bytes.
    """

    _read: Callable[[], bytes] | None = None
    """What reads the file, until it is decoded."""

    def __init__(self, size: Size, id: UUID, read: Callable[[], bytes]) -> None:
        super().__init__()
        self._mode, self._size = "RGB", (size.width, size.height)
        self._read = read
        self.getexif()[ExifTags.Base.ImageID] = id

    @property
    def im(self) -> Any:
        """The pixels, which Pillow's methods ask for after `load`; decoded now, if they were not.

        Raises:
            ImageError: see `read_image`.
        """
        read = self._read
        if read is not None:
            self._im, self._read = read_image(read()).im, None
        return self._im

    @im.setter
    def im(self, pixels: Any) -> None:
        self._im = pixels

    def copy(self) -> Image.Image:
        """Return another picture of the same content, which is decoded no sooner."""
        id = self.getexif()[ExifTags.Base.ImageID]
        return super().copy() if self._read is None else LazyImage(Size(*self.size), id, self._read)

    def decoded(self) -> Image.Image:
        """Return the picture with its pixels, which this one goes on without.

        Raises:
            ImageError: see `read_image`.
        """
        return self if self._read is None else read_image(self._read())

    def __reduce__(self) -> tuple[object, ...]:
        return Image.frombytes, (self.mode, self.size, self.tobytes())  # in other processes it is an ordinary picture


def content_id(data: bytes) -> UUID:
    """Return a file's UUID: equal bytes have the same, other bytes another."""
    return UUID(bytes=sha256(data).digest()[:16])


def content_of(image: Image.Image) -> bytes:
    """Return what distinguishes two pictures: the UUID that vLLM uses too, or else the pixels."""
    id = image.getexif().get(ExifTags.Base.ImageID)
    return id.bytes if isinstance(id, UUID) else image.tobytes()


def _open(data: bytes, formats: tuple[str, ...]) -> Image.Image:
    if len(data) > MAX_BYTES:
        raise ImageError(f"a picture must have at most {MAX_BYTES} bytes, got {len(data)}")
    scans = data.count(b"\xff\xda") if data.startswith(b"\xff\xd8") else 0
    if scans > MAX_SCANS:
        raise ImageError(f"a JPEG must have at most {MAX_SCANS} scans, got {scans}")
    if data.count(b"iCCP") > MAX_PROFILES:
        raise ImageError(f"a PNG must have at most {MAX_PROFILES} profiles, got {data.count(b'iCCP')}")
    if _has_many_parts(data):
        raise ImageError(f"a picture must have at most {MAX_PARTS} chunks or segments")
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except Exception as error:
        raise ImageError(f"a picture must be {' or '.join(formats)}, got {len(data)} bytes: {error}") from error
    if image.width * image.height > MAX_PIXELS:
        raise ImageError(f"a picture must have at most {MAX_PIXELS} pixels, got {image.width}x{image.height}")
    if max(image.size) > MAX_RATIO * min(image.size):
        raise ImageError(f"a picture's sides must be at most {MAX_RATIO} to 1, got {image.width}x{image.height}")
    return image


def _has_many_parts(data: bytes) -> bool:
    """Return whether Pillow would read more than `MAX_PARTS`, including what stands between a JPEG's segments."""
    is_png, at = data.startswith(b"\x89PNG"), 8
    if not is_png:
        if not data.startswith(b"\xff\xd8"):
            return False
        at = 2
    for _ in range(MAX_PARTS):
        if is_png:
            if len(data) < at + 8:
                return False
            at += 12 + struct.unpack_from(">I", data, at)[0]
            continue
        if len(data) < at + 4 or data[at : at + 2] == b"\xff\xda":
            return False
        marker = data[at + 1] if data[at] == 0xFF else 0
        # Pillow also skips anything else byte by byte: padding, garbage, a marker without a length.
        has_length = 0xC0 <= marker <= 0xFE and not 0xD0 <= marker <= 0xD9
        at += 2 + struct.unpack_from(">H", data, at + 2)[0] if has_length else 1
    return True
