"""Define the domain on one page: tasks, actions, observations and episodes.

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

REWARD_PROGRAM = "reward_program"
"""The name of a bundle's metric and of its getter; the getter's `program` is the source."""
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


def finite_number(value: object) -> float | None:
    """Return a number as a plain float: Python's, numpy's, or the only element of an array or a tensor. True is 1.

    Return None for everything else, and for NaN, infinity and what is infinite in the trainer's float32.
    """
    try:
        item = getattr(value, "item", None)
        only = item() if callable(item) else value
        number = float(only) if isinstance(only, Real) else math.nan
    except (TypeError, ValueError, RuntimeError, OverflowError):  # several elements, or a very long integer
        return None
    return number if abs(number) <= _LARGEST_FLOAT32 else None


def valid_score(value: object) -> float:
    """Return an evaluator's score as a plain float.

    Raises:
        EvaluatorError: it is not a number from 0 to 1. NaN does not mean 0: the real score is unknown.
    """
    number = finite_number(value)
    if number is None or not 0 <= number <= 1:
        raise EvaluatorError(f"a metric must return a number from 0 to 1, got {value!r:.200}")
    return number


def is_bundle(spec: Mapping[str, Any]) -> bool:
    """Return whether a task brings its own program as its evaluator."""
    evaluator = spec.get("evaluator")
    return isinstance(evaluator, Mapping) and evaluator.get("func") == REWARD_PROGRAM


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
    """One OSWorld task. `spec` is the task file's JSON, which the OSWorld client gets unchanged."""

    task_id: str
    instruction: str
    spec: Mapping[str, Any] = field(repr=False)
    domain: str = field(default="", compare=False)
    """Name of the file's folder, which is the task's domain in OSWorld's layout; "" if no file names it."""
    where: str = field(default="", compare=False, repr=False)
    """The task's file, for messages."""


# --- Actions -----------------------------------------------------------------------------------------------------

Button = Literal["left", "right", "middle"]
Direction = Literal["up", "down", "left", "right"]


@dataclass(frozen=True)
class Click:
    """Press and release a mouse button `count` times at `point`; None: at the pointer."""

    point: Point | None
    button: Button = "left"
    count: int = 1


@dataclass(frozen=True)
class Drag:
    """Press the left button at `start` (None: at the pointer), move to `end`, release."""

    start: Point | None
    end: Point


@dataclass(frozen=True)
class Move:
    """Move the pointer, without a button."""

    point: Point


@dataclass(frozen=True)
class Hotkey:
    """Press the keys together, in order, by pyautogui's key names. A repeated key is pressed again while the others
    stay down: `("alt", "tab", "tab")`."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class TypeText:
    """Type `text` on the keyboard; a newline presses Enter."""

    text: str


@dataclass(frozen=True)
class Scroll:
    """Turn the wheel at `point`; None: at the pointer."""

    direction: Direction
    point: Point | None = None
    notches: int | None = None
    """Notches to turn. None, for grammars without an amount: as far as the environment usually scrolls."""


@dataclass(frozen=True)
class Wait:
    """Do nothing for a while. The environment decides how long."""


@dataclass(frozen=True)
class Finish:
    """Declare the task done. The evaluator decides whether it is."""

    answer: str = ""


@dataclass(frozen=True)
class Fail:
    """Declare the task impossible: the right answer to an infeasible OSWorld task."""


Action = Click | Drag | Move | Hotkey | TypeText | Scroll | Wait | Finish | Fail


# --- Episodes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observation:
    """What the agent sees: the bytes of the desktop's screenshot (PNG or JPEG)."""

    screenshot: bytes = field(repr=False)


@dataclass(frozen=True)
class GuestRequest:
    """One request of OSWorld's guest protocol."""

    method: str
    path: str
    """Path such as `/execute`."""
    content_type: str
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class GuestAnswer:
    """The answer of a desktop's guest, whatever it is."""

    status: int
    """The HTTP status."""
    content_type: str
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class MetricCall:
    """One metric that the evaluator called: its arguments and its result, as shortened Python literals."""

    metric: str
    result: str
    """What the task's getter found on the desktop."""
    expected: str
    """What the task expects, and the metric's options."""
    returned: str


@dataclass(frozen=True)
class Evaluation:
    """The result of the OSWorld evaluator: `score` from 0 to 1, and the metrics behind it, for people to read.

    Raises:
        EvaluatorError: score or share is not a number from 0 to 1.
    """

    score: float
    metrics: tuple[MetricCall, ...] = ()
    share: float | None = None
    """Mean of all the evaluator's checks, from 0 to 1, even of those that the score did not wait for; None if it is not
    known. It never changes the score, but training may reward it, see `environment.partial_credit`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", valid_score(self.score))
        if self.share is not None:
            object.__setattr__(self, "share", valid_score(self.share))


@dataclass(frozen=True)
class EpisodeId:
    """Identifies one of a run's episodes, also in its records."""

    step: int
    """Training step in which its prompt was drawn. An asynchronous trainer may train on it in a later step."""
    uid: str
    """Uid of the prompt, and so of the group."""
    session: int
    """Number of the session in its group, from 0."""


class StopReason(StrEnum):
    """Why an episode ended. Environment faults are exceptions, not stop reasons: such episodes have no reward."""

    FINISHED = "finished"
    FAILED = "failed"
    PARSE_ERROR = "parse_error"
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    DESKTOP_ENDED = "desktop_ended"
    """The policy provably ended the desktop: powered it off, or killed its screen or server."""
