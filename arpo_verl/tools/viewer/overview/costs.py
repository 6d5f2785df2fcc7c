"""Shows where the time went, and what broke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from arpo_verl.records.metric_names import DESKTOPS, TIMES, labels
from arpo_verl.records.metrics_files import Metrics
from arpo_verl.records.summaries import EpisodeSummary
from arpo_verl.tools.viewer.overview.success import group_by

STEP = "timing_s/step"
PARTS = labels(
    TIMES,
    (
        *("timing_s/gen", "timing_s/old_log_prob", "timing_s/ref", "timing_s/adv", "timing_s/update_critic"),
        *("timing_s/update_actor", "timing_s/update_weights", "timing_s/save_checkpoint"),
    ),
)
"""The parts of a step, by veRL's names; other `timing_s/*` are a part of one of these, or outside of the step."""
VALIDATION = "timing_s/testing"
"""The time of validation, which is not part of veRL's time of a step."""
CALLS = labels(DESKTOPS, (f"environment/{call}_s/mean" for call in ("lease_wait", "boot", "reset", "step", "evaluate")))
_FAULT = "environment/faults/"
_IN_EPISODES = ("setup", "lost", "unclear", "evaluator", "host")
FAULTS = labels(
    DESKTOPS,
    (
        "environment/dropped_sessions",
        *(f"{_FAULT}{kind}" for kind in ("boot", *_IN_EPISODES, "idle")),
        "environment/leases_reclaimed",
    ),
)
ALL_TASKS = "all tasks"


@dataclass(frozen=True)
class Timing:
    """The seconds of a part of a step, or of a call."""

    name: str
    what: str
    mean_s: float
    max_s: float
    share: float | None = None
    """Share of all steps' time."""


@dataclass(frozen=True)
class TaskTime:
    """A task's mean seconds for an episode; None if the run did not record them."""

    task_id: str
    episodes: int
    wall_s: float | None
    generate_s: float | None
    desktop_s: float | None
    num_turns: float

    @property
    def order(self) -> float:
        known = (self.generate_s or 0.0) + (self.desktop_s or 0.0)
        return self.wall_s if self.wall_s is not None else known


@dataclass(frozen=True)
class FaultCount:
    """A kind of fault, and how often it happened."""

    what: str
    count: int


@dataclass(frozen=True)
class Faults:
    kinds: list[FaultCount] | None
    """Counts by kind; None if the run did not log them."""
    total: int
    """Desktops that failed, in any way."""
    retried: int
    """Attempts that a desktop's fault ended, and that were repeated on a fresh desktop."""
    broken: dict[str, str]
    """Recorded folders that are not readable as an episode, and why."""


def step_parts(metrics: Metrics) -> list[Timing]:
    """Return the parts of the steps' time, the largest first; then the time without a timer, and validation."""
    whole_s = sum(_values(metrics, STEP))
    parts = [_part(metrics, name, what, whole_s) for name, what in PARTS.items() if _values(metrics, name)]
    parts.sort(key=lambda part: sum(_values(metrics, part.name)), reverse=True)
    if whole_s:
        rest_s = max(0.0, whole_s - sum(sum(_values(metrics, name)) for name in PARTS))
        parts.append(Timing("", "everything else", rest_s / len(_values(metrics, STEP)), 0.0, rest_s / whole_s))
    if _values(metrics, VALIDATION):
        parts.append(_part(metrics, VALIDATION, TIMES[VALIDATION].label, 0.0))
    return parts


def desktop_calls(metrics: Metrics) -> list[Timing]:
    """Return the times of the desktops' calls, from the steps' means."""
    return [_part(metrics, name, what, 0.0) for name, what in CALLS.items() if _values(metrics, name)]


def slowest_tasks(episodes: Sequence[EpisodeSummary], count: int = 10) -> list[TaskTime]:
    """Return all tasks together, and then the tasks whose episodes take longest."""
    if not episodes:
        return []
    tasks = [
        _task_time(task_id, episodes_of_task)
        for task_id, episodes_of_task in group_by((e.task_id, e) for e in episodes).items()
    ]
    slowest = sorted((task for task in tasks if task.order > 0), key=lambda task: task.order, reverse=True)
    return [_task_time(ALL_TASKS, episodes), *slowest[:count]] if slowest else []


def faults(metrics: Metrics, broken: dict[str, str]) -> Faults:
    """Return what broke."""
    kinds = None
    if any(name in metrics.series for name in FAULTS):
        kinds = [FaultCount(what, int(sum(_values(metrics, name)))) for name, what in FAULTS.items()]
    total = int(sum(sum(_values(metrics, name)) for name in FAULTS if name.startswith(_FAULT)))
    in_episodes = sum(sum(_values(metrics, _FAULT + kind)) for kind in _IN_EPISODES)
    retried = int(in_episodes - sum(_values(metrics, "environment/dropped_sessions")))
    return Faults(kinds, total, max(0, retried), broken)


def _part(metrics: Metrics, name: str, what: str, whole_s: float) -> Timing:
    values = _values(metrics, name)
    return Timing(name, what, fmean(values), max(values), sum(values) / whole_s if whole_s else None)


def _values(metrics: Metrics, name: str) -> list[float]:
    return [value for value in metrics.column(name) if value is not None]


def _task_time(task_id: str, episodes: Sequence[EpisodeSummary]) -> TaskTime:
    def mean(name: str) -> float | None:
        values = [value for episode in episodes if (value := getattr(episode, name)) is not None]
        return fmean(values) if values else None

    turns = fmean(episode.num_turns for episode in episodes)
    return TaskTime(task_id, len(episodes), mean("wall_s"), mean("generate_s"), mean("desktop_s"), turns)
