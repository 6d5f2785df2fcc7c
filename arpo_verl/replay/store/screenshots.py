"""Keep screenshots by content: each once, however many trajectories show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from arpo_verl.replay.store.encoding import image_suffix


def screenshot_name(content: bytes) -> str:
    """Return SHA-256 and format of the content: the key here, and the file's name on disk."""
    return f"{sha256(content).hexdigest()}.{image_suffix(content)}"


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

    def __len__(self) -> int:
        return len(self._held)

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
