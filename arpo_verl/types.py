"""The domain on one page: what a task, an action, an observation and a trajectory are.

Data flows one way: task -> rollout -> trajectory -> replay -> advantage -> update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from typing import Any, Literal, NamedTuple

from arpo_verl.errors import EvaluatorError

_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


def finite_number(value: object) -> float | None:
    """A number as a plain float: Python's, numpy's, or the only element of an array or a tensor. True is 1.

    None for everything else, and for NaN, infinity and what is infinite in the trainer's float32.
    """
    try:
        item = getattr(value, "item", None)
        only = item() if callable(item) else value
        number = float(only) if isinstance(only, Real) else math.nan
    except (TypeError, ValueError, RuntimeError, OverflowError):  # of several elements, or of a very long integer
        return None
    return number if abs(number) <= _LARGEST_FLOAT32 else None


def valid_score(value: object) -> float:
    """An evaluator's score as a plain float.

    Raises:
        EvaluatorError: it is not a number from 0 to 1. NaN is no verdict of 0: nobody knows what it would have been.
    """
    number = finite_number(value)
    if number is None or not 0 <= number <= 1:
        raise EvaluatorError(f"a metric must return a number from 0 to 1, got {value!r:.200}")
    return number


class Size(NamedTuple):
    """A screen or image size in pixels."""

    width: int
    height: int


class Point(NamedTuple):
    """A position in pixels of the screen, origin top left."""

    x: int
    y: int


@dataclass(frozen=True)
class Task:
    """One OSWorld task: `spec` is the task file's JSON as it is, handed unchanged to the OSWorld client."""

    task_id: str
    instruction: str
    spec: Mapping[str, Any] = field(repr=False)
    domain: str = field(default="", compare=False)
    """The name of the file's folder, which in OSWorld's layout is the task's domain; "" where no file says."""


# --- Actions -----------------------------------------------------------------------------------------------------

Button = Literal["left", "right", "middle"]
Direction = Literal["up", "down", "left", "right"]


@dataclass(frozen=True)
class Click:
    """Press and release a mouse button `count` times at one point, or where the pointer is when `point` is None."""

    point: Point | None
    button: Button = "left"
    count: int = 1


@dataclass(frozen=True)
class Drag:
    """Press the left button at `start`, or where the pointer is when it is None, move to `end`, release."""

    start: Point | None
    end: Point


@dataclass(frozen=True)
class Move:
    """Move the pointer, without a button."""

    point: Point


@dataclass(frozen=True)
class Hotkey:
    """Press the keys together, in order, by pyautogui's key names; one that comes again is pressed again, while the
    others stay down: `("alt", "tab", "tab")`."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class TypeText:
    """Type `text` on the keyboard; a newline presses Enter."""

    text: str


@dataclass(frozen=True)
class Scroll:
    """Turn the wheel at `point`, or where the pointer is when `point` is None."""

    direction: Direction
    point: Point | None = None
    notches: int | None = None
    """How far; None, where the model's grammar has no amount, is as far as the environment usually scrolls."""


@dataclass(frozen=True)
class Wait:
    """Do nothing for a while; how long is the environment's to decide."""


@dataclass(frozen=True)
class Finish:
    """The agent says that the task is done; the evaluator decides whether it is."""

    answer: str = ""


@dataclass(frozen=True)
class Fail:
    """The agent says that the task cannot be done: the right answer to an infeasible OSWorld task."""


Action = Click | Drag | Move | Hotkey | TypeText | Scroll | Wait | Finish | Fail


# --- Episodes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observation:
    """What the agent sees: the screenshot's bytes as the desktop sent them (PNG or JPEG)."""

    screenshot: bytes = field(repr=False)


@dataclass(frozen=True)
class GuestRequest:
    """One request of OSWorld's guest protocol."""

    method: str
    path: str
    """As `/execute`."""
    content_type: str
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class GuestAnswer:
    """What a desktop's guest answered, whatever that is."""

    status: int
    """Of HTTP."""
    content_type: str
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class MetricCall:
    """One metric that the evaluator called: what it was given and what it returned, as shortened Python literals."""

    metric: str
    result: str
    """What the task's getter found on the desktop."""
    expected: str
    """What the task expects, and the metric's options."""
    returned: str


@dataclass(frozen=True)
class Evaluation:
    """The OSWorld evaluator's verdict: `score` in [0, 1], and the metrics behind it, for people to read.

    Raises:
        EvaluatorError: score or share is not a number from 0 to 1.
    """

    score: float
    metrics: tuple[MetricCall, ...] = ()
    share: float | None = None
    """Mean of all the evaluator's checks, in [0, 1], also of those that its verdict did not wait for; None where it is
    not known. Never a verdict: training alone may reward it, see `environment.partial_credit`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", valid_score(self.score))
        if self.share is not None:
            object.__setattr__(self, "share", valid_score(self.share))


@dataclass(frozen=True)
class EpisodeId:
    """Which of a run's episodes: under this name it is recorded."""

    step: int
    """Training step in which its prompt was drawn; an asynchronous trainer may train on it in a later one."""
    uid: str
    """The prompt's, and so the group's."""
    session: int
    """Its number within the group, from 0."""


class StopReason(StrEnum):
    """Why an episode ended. Environment faults are exceptions, never a stop reason: they end in no reward at all."""

    FINISHED = "finished"
    FAILED = "failed"
    PARSE_ERROR = "parse_error"
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    DESKTOP_ENDED = "desktop_ended"
    """The policy itself ended the desktop, as that can prove: powered off, or its screen or server killed."""
