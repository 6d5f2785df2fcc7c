"""Aligns two episodes by their screens: it pairs screenshots of one with those of the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arpo_verl.errors import ImageError
from arpo_verl.lib.images import read_image
from arpo_verl.lib.untrusted import read_regular
from arpo_verl.records.layout import screenshot_names
from arpo_verl.records.run import Run

MOST_SCREENS = 100
"""Most screens of an episode; later ones are paired like the last of these."""
_SIZE = (64, 48)
"""The size to which we shrink a screen: a cell of 640x480 has 10x10 pixels."""
_LEVELS = 12
"""A cell differs if its level, of 255, differs by more than this."""
_CELLS = 3
"""Up to so many differing cells still mean the same screen: a blinking caret, a clock's last digit."""
_ALONE, _UNLIKE = 0.6, 1.0
"""The cost of an unpaired screen, and of a pair that differs: cheaper than both unpaired."""

_Screen = NDArray[np.int16] | None
"""A shrunk screen; None if it was not kept."""


def alignment_document(run: Run, first: str, second: str) -> dict[str, Any]:
    """Make `api/align`: pairs of screenshot numbers, and whether both show the same screen; null if one is missing.

    Raises:
        KeyError: there is no such episode.
    """
    return {"pairs": align(*(_screens(run, episode_id) for episode_id in (first, second)))}


def align(first: Sequence[_Screen], second: Sequence[_Screen]) -> list[tuple[int, int, bool | None]]:
    """Return the cheapest pairs in order. An unpaired screen stands beside the other episode's current screen."""
    if not first or not second:
        return []
    same = [[_is_same(one, other) for other in second] for one in first]
    rows, columns = len(first), len(second)
    costs = _ALONE * np.add.outer(np.arange(rows, -1, -1), np.arange(columns, -1, -1))  # of the rest from there on
    for i in reversed(range(rows)):
        for j in reversed(range(columns)):
            alone = _ALONE + min(costs[i, j + 1], costs[i + 1, j])
            costs[i, j] = min(costs[i + 1, j + 1] + (0.0 if same[i][j] else _UNLIKE), alone)
    i, j, pairs = 0, 0, []
    while i < rows or j < columns:
        if i < rows and j < columns and costs[i, j] >= costs[i + 1, j + 1] + (0.0 if same[i][j] else _UNLIKE) - 1e-9:
            i, j = i + 1, j + 1
        elif j == columns or (i < rows and costs[i + 1, j] < costs[i, j + 1]):
            i += 1
        else:
            j += 1
        one, other = max(i, 1) - 1, max(j, 1) - 1
        pairs.append((one, other, same[one][other]))
    return pairs


def _is_same(one: _Screen, other: _Screen) -> bool | None:
    if one is None or other is None:
        return None
    return bool((np.abs(one - other) > _LEVELS).sum() <= _CELLS)


def _screens(run: Run, episode_id: str) -> list[_Screen]:
    folder = run.folder(episode_id)
    on_disk = set(screenshot_names(folder))
    names = run.episode(episode_id).get("screenshots", [])[:MOST_SCREENS]
    return [_small(folder / name) if name in on_disk else None for name in names]


def _small(screenshot: Path) -> _Screen:
    try:
        picture = read_image(read_regular(screenshot)).convert("L").resize(_SIZE, Image.Resampling.BOX)
    except (OSError, ImageError):
        return None
    return np.asarray(picture, dtype=np.int16)
