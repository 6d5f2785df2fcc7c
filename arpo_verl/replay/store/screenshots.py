"""Screenshots by content: each held once however many trajectories show it, in memory or spilled to disk. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from arpo_verl.replay.store.encoding import image_suffix
from arpo_verl.replay.store.spill import SpillFolder

logger = logging.getLogger(__name__)

# What CPython takes for a held screenshot beside its content: the content's object, the name, a `_Held`, the entries of
# the dicts. Measured with tracemalloc, rounded up; a test compares.
OVERHEAD_BYTES = 312


def screenshot_name(content: bytes) -> str:
    """SHA-256 of the content and its format: the key here, and the file's name on disk."""
    return f"{sha256(content).hexdigest()}.{image_suffix(content)}"


@dataclass(slots=True)
class _Held:
    name: str
    content: bytes | None  # None: spilled
    size: int
    references: int = 0


class ScreenshotStore:
    """Counts references; a screenshot leaves with its last one.

    Args:
        spill: where contents go when `spill_oldest` is called; None keeps all in memory.
    """

    def __init__(self, spill: SpillFolder | None = None) -> None:
        self._spill = spill
        self._held: dict[str, _Held] = {}
        self._in_memory: dict[str, None] = {}  # oldest first
        self.memory_bytes = 0
        """Bytes in memory, what CPython needs to keep track included."""
        self.disk_bytes = 0
        """Bytes spilled."""

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def __len__(self) -> int:
        return len(self._held)

    def acquire(self, name: str, new: Mapping[str, bytes]) -> str:
        """Hold one more reference to the screenshot; its content is in `new` unless it is held already.

        Returns:
            The name, the same object for every holder.
        """
        if name not in self._held:
            self._held[name] = _Held(name, new[name], len(new[name]))
            self._in_memory[name] = None
            self.memory_bytes += len(new[name]) + OVERHEAD_BYTES
        held = self._held[name]
        held.references += 1
        return held.name

    def release(self, name: str) -> None:
        """Let go of one reference."""
        held = self._held[name]
        held.references -= 1
        if held.references:
            return
        del self._held[name]
        self.memory_bytes -= OVERHEAD_BYTES
        if held.content is not None:
            del self._in_memory[name]
            self.memory_bytes -= held.size
        elif self._spill is not None:
            self._spill.remove(name)
            self.disk_bytes -= held.size

    def size(self, name: str) -> int:
        """Bytes of a held screenshot, wherever it is."""
        return self._held[name].size

    def read(self, name: str) -> bytes:
        """The screenshot's bytes."""
        held = self._held[name]
        if held.content is not None:
            return held.content
        assert self._spill is not None
        return self._spill.read(name)

    def spill_oldest(self) -> bool:
        """Move the content that has been in memory for longest to disk; False when there is none, or disk refuses."""
        if self._spill is None or not self._in_memory:
            return False
        name = next(iter(self._in_memory))
        held = self._held[name]
        assert held.content is not None
        try:
            self._spill.write(name, held.content)
        except OSError as error:
            logger.warning("replay.spill_dir takes no more (%s): trajectories are evicted instead", error)
            return False
        held.content = None
        del self._in_memory[name]
        self.memory_bytes -= held.size
        self.disk_bytes += held.size
        return True
