"""Pictures that came from a desktop, decoded within bounds: the only place on the host that opens one.

A desktop runs whatever the policy types, so its screenshots are a stranger's files: one of 400 kB may decode to 484 MB,
and a name such as `.png` says nothing about which of Pillow's forty decoders, Ghostscript among them, it would reach.
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
"""A screen of 7680x4320 as PNG has 10 to 40 MB; noise of 4096x4096, the largest embedded screen, has 50."""
MAX_PIXELS = LARGEST.width * LARGEST.height
MAX_RATIO = 200
"""Of the longer side to the shorter one: what Qwen-VL's image processors take (`smart_resize` of transformers 5.9)."""
MAX_SCANS = 64
"""Of a progressive JPEG; encoders write about ten. One of 50 bytes costs another pass over all pixels, 12 ms."""
MAX_PARTS = 20_000
"""Chunks of a PNG, segments of a JPEG before its first scan. Pillow takes 3 us for each, which may have 4 bytes."""
MAX_PROFILES = 8
"""Of a PNG, which may have one. Each is unpacked with the header, 1 KB to 1 MB, in 2 ms."""
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
        ImageError: it has more than `MAX_BYTES` bytes or `MAX_PIXELS` pixels, another format or a shape that no screen
            has, or is broken.
    """
    image = _open(data, formats)
    try:
        return image.convert("RGB")
    except Exception as error:  # decoders of broken data raise OSError, SyntaxError, ValueError, zlib.error, ...
        raise ImageError(f"a picture of {len(data)} bytes is broken: {type(error).__name__}: {error}") from error


class LazyImage(Image.Image):
    """A picture in RGB whose file is read and decoded when a pixel is first asked for: 1920x1080 has 6.2 MB of pixels.

    Its EXIF `ImageID` is its content's UUID, by which vLLM's cache of processed images knows it without a pixel
    (0.24, `multimodal/hasher.py: MultiModalHasher.serialize_item`).

    Args:
        size: in pixels.
        id: of the content; see `content_id`.
        read: gives the file's bytes.
    """

    def __init__(self, size: Size, id: UUID, read: Callable[[], bytes]) -> None:
        super().__init__()
        self._mode, self._size = "RGB", (size.width, size.height)
        self._read: Callable[[], bytes] | None = read
        self.getexif()[ExifTags.Base.ImageID] = id

    def load(self) -> Any:
        """Have the pixels; Pillow calls it before it looks at one.

        Raises:
            ImageError: see `read_image`.
        """
        read = self._read
        if read is not None:
            self.im, self._read = read_image(read()).im, None
        return super().load()

    def __reduce__(self) -> tuple[object, ...]:
        return Image.frombytes, (self.mode, self.size, self.tobytes())  # elsewhere a picture as any other


def content_id(data: bytes) -> UUID:
    """A file's UUID: the same for the same bytes, and for no others."""
    return UUID(bytes=sha256(data).digest()[:16])


def content_of(image: Image.Image) -> bytes:
    """What two pictures differ in: the UUID that vLLM goes by too, or else the pixels."""
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
    """Whether Pillow would read more of them than `MAX_PARTS`, what stands between a JPEG's segments included."""
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
        # Anything else is a byte to step over, to Pillow too: padding, garbage, a marker without a length.
        has_length = 0xC0 <= marker <= 0xFE and not 0xD0 <= marker <= 0xD9
        at += 2 + struct.unpack_from(">H", data, at + 2)[0] if has_length else 1
    return True
