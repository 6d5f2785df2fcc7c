"""Keep screenshots by content: each once, however many trajectories show it. Name and convert their formats. Pure."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from arpo_verl.lib.images import read_image

_SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp"}


def as_png(screenshot: bytes) -> bytes:
    """Return the screenshot as a PNG, unchanged if it is one already.

    Raises:
        ImageError: it is not a picture.
    """
    if _suffix(screenshot) == "png":
        return screenshot
    buffer = io.BytesIO()
    read_image(screenshot).save(buffer, format="PNG")
    return buffer.getvalue()


def screenshot_name(content: bytes) -> str:
    """Return SHA-256 and format of the content: the key here, and the file's name on disk."""
    return f"{sha256(content).hexdigest()}.{_suffix(content)}"


def _suffix(screenshot: bytes) -> str:
    """Return the file name's ending for the image's format; `bin` if desktops do not send it."""
    return next((suffix for magic, suffix in _SUFFIXES.items() if screenshot.startswith(magic)), "bin")


@dataclass(slots=True)
class _Held:
    name: str
    content: bytes
    references: int = 0


class ScreenshotStore:
    """Counts references. A screenshot is dropped with its last one."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self.num_bytes = 0
        """Bytes of all contents."""

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def acquire(self, name: str, new: Mapping[str, bytes]) -> str:
        """Add a reference to the screenshot. If it is new here, its content is in `new`.

        Returns:
            The name, the same object for every holder.
        """
        if name not in self._held:
            self._held[name] = _Held(name, new[name])
            self.num_bytes += len(new[name])
        held = self._held[name]
        held.references += 1
        return held.name

    def release(self, name: str) -> None:
        """Drop one reference."""
        held = self._held[name]
        held.references -= 1
        if not held.references:
            del self._held[name]
            self.num_bytes -= len(held.content)

    def read(self, name: str) -> bytes:
        """Return the screenshot's bytes."""
        return self._held[name].content
