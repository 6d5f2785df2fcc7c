"""Makes the overview's document from a run's folder."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from arpo_verl.errors import ConfigError
from arpo_verl.records.json_files import as_number
from arpo_verl.records.layout import METRICS_FILE
from arpo_verl.records.metrics_files import Metrics
from arpo_verl.records.run import Run, Snapshot
from arpo_verl.records.run_summary import WINDOW, summarize_run
from arpo_verl.records.starting import read_start
from arpo_verl.records.starts import faults_before, read_starts
from arpo_verl.records.summaries import EpisodeSummary
from arpo_verl.tools.viewer.overview.costs import FAULTS, STEP, desktop_calls, faults, slowest_tasks, step_parts
from arpo_verl.tools.viewer.overview.replay import replay_effect
from arpo_verl.tools.viewer.overview.samples import choose_samples
from arpo_verl.tools.viewer.overview.success import (
    by_step,
    by_task,
    group_by,
    is_validation,
    success_rate,
    validations,
)
from arpo_verl.versions import __version__

_STOP = "rollout/stop/"
_GROUPS = {"all_solved": "all solved", "mixed": "mixed", "all_failed": "all failed"}
_DRAWN = 6
"""Most parts of a stack in a chart; the tables have the rest."""


def overview_document(run: Run, snapshot: Snapshot) -> dict[str, Any]:
    """Make `api/overview`: the run at a glance. Unrecorded values are null or empty; shares are in [0, 1]."""
    metrics = run.metrics()
    validation = [episode for episode in snapshot.episodes if is_validation(episode)]
    training = [episode for episode in snapshot.episodes if not is_validation(episode)]
    starts, start = list(read_starts(run.run_dir)), read_start(run.run_dir)
    trains = bool(starts or start or metrics.steps or training) or not validation
    if not trains:  # `arpo-verl try` and an evaluation only play
        training, validation = validation, []
    replay = replay_effect(snapshot.index.groups(), training, metrics)
    trained = [i for i, value in enumerate(metrics.column("rollout/success_mean")) if value is not None]
    return {
        "name": run.name,
        "run_dir": str(run.run_dir),
        "made_at": time.time(),
        "live": run.is_live(),
        "version": __version__,
        "summary": _summary(run.run_dir),
        "left": _steps_left(starts, metrics),
        "start": start and dataclasses.asdict(start),
        "trains": trains,
        "starts": [_start(*each) for each in zip(starts, faults_before(run.run_dir, starts), strict=True)],
        "times": _times(run.run_dir, starts, snapshot.episodes),
        "num_training": len(training),
        "num_validation": len(validation),
        "partial_scores": sum(0 < e.success < 1 for e in snapshot.episodes if e.success is not None),
        "success": by_step(training, metrics),
        "validations": validations(validation, metrics),
        "tasks": by_task(training, validation),
        "replay": replay,
        "faults": faults(metrics, snapshot.broken),
        "parts": step_parts(metrics),
        "calls": desktop_calls(metrics),
        "slowest": slowest_tasks(training),
        "stop_reasons": _stop_reasons(training),
        "steps": [metrics.steps[i] for i in trained],
        "charts": _charts(metrics, trained),
        "samples": choose_samples(run, snapshot, training),
        "missing": _missing(starts, metrics, snapshot.episodes, replay) if trains and not start else [],
    }


class OverviewFeed:
    """Makes the overview for pages that ask repeatedly, again only after the run has changed. Thread-safe."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._made_of: tuple[int, Metrics] | None = None
        self._document: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """Return the overview of the run as it is now."""
        snapshot, metrics = self._run.snapshot(), self._run.metrics()
        with self._lock:
            if self._made_of is None or self._made_of[0] != snapshot.number or self._made_of[1] is not metrics:
                self._document = overview_document(self._run, snapshot)
                self._made_of = (snapshot.number, metrics)
            start = read_start(self._run.run_dir)
            return {**self._document, "live": self._run.is_live(), "start": start and dataclasses.asdict(start)}


def _summary(run_dir: Path) -> dict[str, Any] | None:
    try:
        return dataclasses.asdict(summarize_run(run_dir)) | {"run_dir": str(run_dir)}
    except (ConfigError, OSError, KeyError, TypeError):  # no metrics yet, or another file
        return None


def _steps_left(starts: Sequence[dict[str, Any]], metrics: Metrics) -> dict[str, Any]:
    """Return how many training steps the run has, and how long the remaining ones will take; null if unknown."""
    total = as_number(starts[-1].get("total_steps")) if starts else None
    done = [(step, s) for step, s in zip(metrics.steps, metrics.column(STEP), strict=True) if s is not None]
    if total is None or not done:
        return {"total_steps": total, "seconds": None}
    seconds_each = fmean(seconds for _, seconds in done[-WINDOW:])
    return {"total_steps": total, "seconds": max(0.0, total - done[-1][0]) * seconds_each}


def _start(start: Mapping[str, Any], fault: str | None) -> dict[str, Any]:
    said = {"recipe": start["recipe"], "versions": start["versions"]}
    return {"time": as_number(start.get("time")), "fault": fault, **said}


def _times(run_dir: Path, starts: Sequence[dict[str, Any]], episodes: Sequence[EpisodeSummary]) -> dict[str, Any]:
    """Return Unix times; `end_is` says what happened at `end`."""
    begun = [episode.started_at for episode in episodes if episode.started_at is not None]
    begun += [noted for start in starts if (noted := as_number(start.get("time"))) is not None]
    ended = [e.started_at + (e.wall_s or 0.0) for e in episodes if e.started_at is not None]
    if ended:
        return {"begin": min(begun), "end": max(ended), "end_is": "last episode ended"}
    try:
        end: float | None = (run_dir / METRICS_FILE).stat().st_mtime
    except OSError:
        end = None
    return {"begin": min(begun, default=None), "end": end, "end_is": "metrics last written"}


def _stop_reasons(training: Sequence[EpisodeSummary]) -> list[dict[str, Any]]:
    """Return the share of episodes with each stop reason, and how many of them got the full score."""
    by_reason = group_by((episode.stop_reason, episode) for episode in training)
    counts = Counter(episode.stop_reason for episode in training)
    return [
        {"reason": reason, "share": count / len(training), "success": success_rate(by_reason[reason])}
        for reason, count in counts.most_common()
    ]


def _charts(metrics: Metrics, trained: Iterable[int]) -> dict[str, dict[str, Any]]:
    """Return the charts beside success, at the training steps with these positions in `metrics`: values by label,
    without series that are always 0."""
    places = list(trained)

    def chart(title: str, unit: str, names: Mapping[str, str]) -> dict[str, Any]:
        columns = {label: [metrics.column(name)[i] for i in places] for name, label in names.items()}
        most = sorted(columns, key=lambda label: -sum(value or 0.0 for value in columns[label]))[:_DRAWN]
        series = {label: columns[label] for label in columns if label in most and any(columns[label])}
        return {"title": title, "unit": unit, "series": series}

    timers = {part["name"]: part["what"] for part in step_parts(metrics) if part["name"]}
    stops = {name: name.removeprefix(_STOP) for name in metrics.series if name.startswith(_STOP)}
    groups = {f"replay/groups_{name}": label for name, label in _GROUPS.items()}
    return {
        "groups": chart("Groups before any replay", "groups", groups),
        "replays": chart("Replays injected", "rows", {"replay/injected": "replays"}),
        "time": chart("Time of a training step", "seconds", timers),
        "stops": chart("Stop reasons", "share of episodes", stops),
        "faults": chart("Faults", "times", FAULTS),
    }


def _missing(
    starts: Sequence[object], metrics: Metrics, episodes: Sequence[EpisodeSummary], replay: Mapping[str, Any]
) -> list[str]:
    """Return sentences on what the run did not record."""
    said = {
        "No recipe and no versions: the run has no starts.jsonl (it is older, or did not use a recipe's "
        "RunCallback).": bool(starts),
        f"No metrics: there is no {METRICS_FILE} (trainer.logger must contain `file`).": bool(metrics.steps),
        "No episodes: none was recorded (gui_agent.trajectory_dir, gui_agent.record).": bool(episodes),
        "Replays by task and age, and what groups would have taught without them: there is no groups.jsonl beside "
        "the episodes.": replay["has_groups_file"] or not episodes,
    }
    return [sentence for sentence, is_said in said.items() if not is_said]
