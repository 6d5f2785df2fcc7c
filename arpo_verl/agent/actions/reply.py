"""Define what all action grammars share: the parsed reply, its bounds, and the two coordinate systems. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from arpo_verl.agent.actions.calls import excerpt
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Action, Point, Size

MAX_REPLY_CHARS = 40_000
"""Longest reply that is parsed: 8,192 tokens of prose are some 36,000 characters. It limits the work on hostile text
to 50 ms (`tests/test_scanners.py`)."""

MAX_ACTIONS = 8
"""Most actions in one reply: more would block the desktop for minutes in one turn."""


@dataclass(frozen=True)
class Reply:
    """One parsed model reply: its thought ("" without one) and one to `MAX_ACTIONS` actions in screen pixels."""

    thought: str
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class CoordinateFrame:
    """The two coordinate systems: the one that the model writes, and the screen's pixels."""

    image: Size
    """The end of the model's axes: the size of the resized image that it saw, or (1000, 1000) for thousandths."""
    screen: Size
    unit: str = "pixels"
    """Unit of the model's coordinates, for messages."""

    def to_screen(self, *numbers: float) -> Point:
        """Return the screen's pixel for the model's (x, y), or for the centre of its box (x1, y1, x2, y2).

        Raises:
            ActionParseError: it is outside the image, or in fractions, which would all be the first pixel.
        """
        # Both edges belong to the image, since a box may end on them; the far edge is the last pixel of the screen.
        for axis, value, limit in zip("xyxy", numbers, 2 * self.image, strict=False):
            if not 0 <= value <= limit:
                raise ActionParseError(f"{axis} must be within the image, 0 to {limit} {self.unit}, got {value:g}")
        if max(numbers) <= 1 < self.image.width and any(value % 1 for value in numbers):
            shown = ", ".join(f"{value:g}" for value in numbers)
            raise ActionParseError(f"a position must be in {self.unit}, got fractions of the image's sides: {shown}")
        x, y = (sum(numbers[axis::2]) / len(numbers[axis::2]) for axis in (0, 1))
        return Point(
            min(round(x * self.screen.width / self.image.width), self.screen.width - 1),
            min(round(y * self.screen.height / self.image.height), self.screen.height - 1),
        )

    def to_image(self, point: Point) -> tuple[int, int]:
        """Return the model's whole coordinates nearest to a pixel of the screen.

        Raises:
            ActionParseError: the point is not on the screen.
        """
        return (
            _nearest(point.x, self.image.width, lambda x: self.to_screen(x, 0).x, self.screen.width),
            _nearest(point.y, self.image.height, lambda y: self.to_screen(0, y).y, self.screen.height),
        )


def unknown_action(name: str, known: Collection[str]) -> ActionParseError:
    """Make the error for an action that the grammar does not have."""
    return ActionParseError(f"unknown action {excerpt(name)}; known: {', '.join(sorted(known))}")


def check_length(text: str) -> None:
    """Refuse a reply that is too long.

    Raises:
        ActionParseError: it has more than `MAX_REPLY_CHARS`.
    """
    if len(text) > MAX_REPLY_CHARS:
        raise ActionParseError(f"a reply must have at most {MAX_REPLY_CHARS} characters, got {len(text)}")


def _nearest(target: int, image_length: int, to_screen: Callable[[int], int], screen_length: int) -> int:
    """Return the image coordinate whose screen coordinate is nearest. The far edge maps back onto the far edge."""
    guess = round(target * image_length / screen_length)
    candidates = [value for value in (guess, guess + 1) if 0 <= value <= image_length]
    if not candidates:
        raise ActionParseError(f"a point must be on the screen, within {screen_length} pixels, got {target}")
    return min(candidates, key=lambda value: abs(to_screen(value) - target))
