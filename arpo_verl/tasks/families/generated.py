"""The generated objects are a task, the replies that solve it, and the texts on its screen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from arpo_verl.types import Size

SCREEN = Size(448, 336)
"""The screen of every generated task, in pixels."""


class Rectangle(NamedTuple):
    """These are pixels of the screen, from the top left; `right` and `bottom` are the first ones outside."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True)
class Label:
    """This is a text on the screen, and the box of its letters, from the capitals' tops to the descenders' ends."""

    text: str
    box: Rectangle


@dataclass(frozen=True)
class GeneratedTask:
    """This is one task of a family."""

    family: str
    spec: dict[str, Any] = field(repr=False)
    """OSWorld's JSON."""
    replies: tuple[dict[str, str], ...]
    """Replies that solve it: `thought` and `action` in the UI-TARS grammar, one action each, in pixels of `SCREEN`."""
    labels: tuple[Label, ...]
    """All texts that are visible after the set-up."""
