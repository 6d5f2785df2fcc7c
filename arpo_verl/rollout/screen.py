"""Whether two screenshots show the same state: a picture as mean grey levels of its cells.

A caret that blinks or a clock changes a few cells; a window, a dialog or a line of text that is missing changes more.
What differs between two desktops from the beginning, such as the clock of another day, is known from their first
screenshots.

Of 603 pairs of screenshots that the scripted expert came to twice in the embedded suite, on desktops of their own, all
were equal in every cell. Of its 55 pairs of one screenshot and the next, 2 differ in four cells or less: a field was
given the focus.
"""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from arpo_verl.types import Size

CELL = 16
"""Side in pixels: a letter or a caret changes a cell or two."""
_LEVELS = 16
"""Grey levels of 256 by which a cell must change to count: a caret changes its cell by about as much."""


@dataclass(frozen=True)
class ScreenCells:
    """A screenshot, 1 byte for 256 pixels."""

    size: Size
    """Of the screen."""
    levels: bytes
    """Row by row."""

    @classmethod
    def of(cls, image: Image.Image) -> ScreenCells:
        return cls(Size(*image.size), image.convert("L").reduce(CELL).tobytes())

    def changed(self, other: ScreenCells) -> set[int] | None:
        """The cells that differ, by number; None where the screens are of different sizes."""
        if self.size != other.size or len(self.levels) != len(other.levels):
            return None
        pairs = zip(self.levels, other.levels, strict=True)
        return {cell for cell, (a, b) in enumerate(pairs) if abs(a - b) > _LEVELS}
