"""How an episode may begin: with replies that are given, up to a state that was recorded. See docs/resume.md."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass

import numpy as np

from arpo_verl.errors import ReplayError
from arpo_verl.rollout.screen import CELLS, changed_cells, stack, thumbnail
from arpo_verl.rollout.vision import decode_screenshot
from arpo_verl.types import Size

MAX_AMBIENT = 0.05
"""Share of the cells that may differ before anything is done: beyond it the task does not begin as it did."""


@dataclass(frozen=True)
class Prefix:
    """The first replies of a past success, in its policy's tokens."""

    replies: tuple[tuple[int, ...], ...]
    left: int
    """Replies that the success took from there on."""
    screen: Size
    """Of its screenshots, in pixels."""
    first: bytes
    """Thumbnail of what it saw before them."""
    state: bytes
    """And after them."""
    tolerance: int
    """Cells of the latter that may differ, beside those that did before."""

    def __post_init__(self) -> None:
        if {len(self.first), len(self.state)} != {CELLS}:
            raise ValueError(f"a thumbnail must have {CELLS} cells, got {len(self.first)} and {len(self.state)}")

    @classmethod
    def of_screenshots(
        cls, replies: tuple[tuple[int, ...], ...], left: int, first: bytes, state: bytes, tolerance: int
    ) -> Prefix:
        """With the state as a desktop's pictures of it."""
        before, after = decode_screenshot(first), decode_screenshot(state)
        return cls(replies, left, Size(*after.size), thumbnail(before), thumbnail(after), tolerance)

    def mismatch(self, first: bytes, now: bytes) -> str | None:
        """In what a desktop is not in the recorded state; None where it is.

        Args:
            first: its screenshot before the replies.
            now: and after them.

        Raises:
            DesktopLostError: see `arpo_verl.rollout.vision.decode_screenshot`.
        """
        before, after = decode_screenshot(first), decode_screenshot(now)
        if not before.size == after.size == self.screen:
            return f"the screen has {after.width}x{after.height} pixels, and had {'x'.join(map(str, self.screen))}"
        is_ambient_C, has_changed_C = changed_cells(
            stack([self.first, self.state]), stack([thumbnail(before), thumbnail(after)])
        )
        if (ambient := np.count_nonzero(is_ambient_C)) > MAX_AMBIENT * CELLS:
            return f"the task began with {ambient} other cells of {CELLS}"
        if (changed := np.count_nonzero(has_changed_C & ~is_ambient_C)) > self.tolerance:
            return f"{changed} of {CELLS} cells differ, and at most {self.tolerance} may"
        return None

    def to_text(self) -> str:
        """As a row of the dataset carries it: nested values would be taken apart on their way through TransferQueue."""
        return json.dumps(
            {
                "replies": self.replies,
                "left": self.left,
                "screen": self.screen,
                "thumbnails": base64.b64encode(zlib.compress(self.first + self.state)).decode(),
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
            thumbnails = zlib.decompress(base64.b64decode(values["thumbnails"]))
            return cls(
                replies=tuple(tuple(map(int, reply)) for reply in values["replies"]),
                left=int(values["left"]),
                screen=Size(*map(int, values["screen"])),
                first=thumbnails[:CELLS],
                state=thumbnails[CELLS:],
                tolerance=int(values["tolerance"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, zlib.error) as error:
            raise ReplayError(
                f"a row's extra_info.resume must be what TaskDataset puts there, got {text[:60]!r}: {error!r}"
            ) from error
