"""Shows where the time went, and what broke, for the page. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

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
_SLOWEST = 10
"""Most tasks that are listed by their time."""
_DROPPED = "environment/dropped_sessions"
_FAULT = "environment/faults/"
_IN_EPISODES = ("setup", "lost", "unclear", "evaluator", "host")
FAULTS = labels(
    DESKTOPS,
    (_DROPPED, *(f"{_FAULT}{kind}" for kind in ("boot", *_IN_EPISODES, "idle")), "environment/leases_reclaimed"),
)


def step_parts(metrics: Metrics) -> list[dict[str, Any]]:
    """Return the parts of the steps' time, the largest first; then the time without a timer, and validation."""
    whole_s = sum(_values(metrics, STEP))
    parts = [_timing(metrics, name, what, whole_s) for name, what in PARTS.items() if _values(metrics, name)]
    parts.sort(key=lambda part: sum(_values(metrics, part["name"])), reverse=True)
    if whole_s:
        rest_s = max(0.0, whole_s - sum(sum(_values(metrics, name)) for name in PARTS))
        mean_s = rest_s / len(_values(metrics, STEP))
        rest = {"name": "", "what": "everything else", "mean_s": mean_s, "max_s": 0.0, "share": rest_s / whole_s}
        parts.append(rest)
    if _values(metrics, VALIDATION):
        parts.append(_timing(metrics, VALIDATION, TIMES[VALIDATION].label, 0.0))
    return parts


def desktop_calls(metrics: Metrics) -> list[dict[str, Any]]:
    """Return the times of the desktops' calls, from the steps' means."""
    return [_timing(metrics, name, what, 0.0) for name, what in CALLS.items() if _values(metrics, name)]


def _timing(metrics: Metrics, name: str, what: str, whole_s: float) -> dict[str, Any]:
    """Describe a part of a step, or a call; `share` is its share of all steps' time, null without one."""
    values = _values(metrics, name)
    share = sum(values) / whole_s if whole_s else None
    return {"name": name, "what": what, "mean_s": fmean(values), "max_s": max(values), "share": share}


def slowest_tasks(episodes: Sequence[EpisodeSummary]) -> list[dict[str, Any]]:
    """Return all tasks together, and then the tasks whose episodes take longest; null where nothing was recorded."""
    by_task = group_by((episode.task_id, episode) for episode in episodes)
    tasks = [_task_time(task_id, episodes_of_task) for task_id, episodes_of_task in by_task.items()]

    def order(task: Mapping[str, Any]) -> float:
        known = (task["generate_s"] or 0.0) + (task["desktop_s"] or 0.0)
        return float(known if task["wall_s"] is None else task["wall_s"])

    slowest = sorted((task for task in tasks if order(task) > 0), key=order, reverse=True)
    return [_task_time("all tasks", episodes), *slowest[:_SLOWEST]] if slowest else []


def _task_time(task_id: str, episodes: Sequence[EpisodeSummary]) -> dict[str, Any]:
    """Describe the mean episode of a task."""

    def mean(name: str) -> float | None:
        values = [value for episode in episodes if (value := getattr(episode, name)) is not None]
        return fmean(values) if values else None

    times = {name: mean(name) for name in ("wall_s", "generate_s", "desktop_s", "num_turns")}
    return {"task_id": task_id, "episodes": len(episodes), **times}


def faults(metrics: Metrics, broken: Mapping[str, str]) -> dict[str, Any]:
    """Return what broke: `kinds` is null if the run did not log it; `total` counts desktops that failed in any way;
    `retried` the attempts that a desktop's fault ended, and that were repeated on a fresh desktop.

    Args:
        broken: recorded folders that are not readable as an episode, and why.
    """
    counts = {name: sum(_values(metrics, name)) for name in FAULTS}
    is_logged = any(name in metrics.series for name in FAULTS)
    retried = sum(counts[_FAULT + kind] for kind in _IN_EPISODES) - counts[_DROPPED]
    return {
        "kinds": [{"what": FAULTS[name], "count": int(counts[name])} for name in FAULTS] if is_logged else None,
        "total": int(sum(count for name, count in counts.items() if name.startswith(_FAULT))),
        "retried": max(0, int(retried)),
        "broken": dict(broken),
    }


def _values(metrics: Metrics, name: str) -> list[float]:
    return [value for value in metrics.column(name) if value is not None]
