"""What is generated: a task, the replies that solve it, and the texts on its screen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from arpo_verl.types import Size

SCREEN = Size(448, 336)
"""The screen of every generated task, in pixels."""


class Rectangle(NamedTuple):
    """Pixels of the screen, origin top left; `right` and `bottom` are the first ones outside."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True)
class Label:
    """A text that stands on the screen, and the box of its letters: from the capitals' tops to the descenders' ends."""

    text: str
    box: Rectangle


@dataclass(frozen=True)
class GeneratedTask:
    """One task of a family."""

    family: str
    spec: dict[str, Any] = field(repr=False)
    """OSWorld's JSON."""
    replies: tuple[dict[str, str], ...]
    """What solves it: `thought` and `action` in the UI-TARS grammar, one action each, points in pixels of `SCREEN`."""
    labels: tuple[Label, ...]
    """All texts that can be seen once the task is set up."""
