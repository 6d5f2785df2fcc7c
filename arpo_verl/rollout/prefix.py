"""How an episode may begin: with replies that are given, up to a state that was recorded. See docs/resume.md."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any

from PIL import Image

from arpo_verl.errors import ReplayError
from arpo_verl.rollout.screen import ScreenCells
from arpo_verl.types import Size

MAX_AMBIENT = 0.05
"""Share of the cells that may differ before anything is done: beyond it the task does not begin as it did."""


@dataclass(frozen=True)
class Prefix:
    """The first replies of a past success, in its policy's tokens."""

    replies: tuple[tuple[int, ...], ...]
    left: int
    """Replies that the success took from there on."""
    first: ScreenCells
    """What it saw before them."""
    state: ScreenCells
    """And after them."""
    tolerance: int
    """Cells of the latter that may differ, beside those that did before."""

    def mismatch(self, first: Image.Image, now: Image.Image) -> str | None:
        """In what a desktop is not in the recorded state; None where it is.

        Args:
            first: its screenshot before the replies.
            now: and after them.
        """
        ambient, changed = self.first.changed(ScreenCells.of(first)), self.state.changed(ScreenCells.of(now))
        if ambient is None or changed is None:
            return f"the screen has another size, {now.width}x{now.height}"
        if len(ambient) > MAX_AMBIENT * len(self.first.levels):
            return f"the task began with {len(ambient)} other cells of {len(self.first.levels)}"
        changed -= ambient
        if len(changed) > self.tolerance:
            return f"{len(changed)} of {len(self.state.levels)} cells differ, and at most {self.tolerance} may"
        return None

    def to_text(self) -> str:
        """As a row of the dataset carries it: nested values would be taken apart on their way through TransferQueue."""
        return json.dumps(
            {
                "replies": self.replies,
                "left": self.left,
                "screens": [_packed(screen) for screen in (self.first, self.state)],
                "tolerance": self.tolerance,
            }
        )

    @classmethod
    def of_text(cls, text: str) -> Prefix:
        """Read it back.

        Raises:
            ReplayError: it is none.
        """
        try:
            values = json.loads(text)
            first, state = map(_unpacked, values["screens"])
            return cls(
                replies=tuple(tuple(map(int, reply)) for reply in values["replies"]),
                left=int(values["left"]),
                first=first,
                state=state,
                tolerance=int(values["tolerance"]),
            )
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise ReplayError(
                f"a row's extra_info.resume must be what TaskDataset puts there, got {text[:60]!r}: {error!r}"
            ) from error


def _packed(screen: ScreenCells) -> list[object]:
    return [*screen.size, base64.b64encode(zlib.compress(screen.levels)).decode()]


def _unpacked(packed: list[Any]) -> ScreenCells:
    width, height, levels = packed
    return ScreenCells(Size(int(width), int(height)), zlib.decompress(base64.b64decode(levels)))
