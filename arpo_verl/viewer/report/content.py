"""All that a report tells of a run, gathered from its folder."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo_verl.errors import ConfigError
from arpo_verl.records.json_files import read_json_object
from arpo_verl.records.layout import METRICS_FILE, POOL_FILE
from arpo_verl.records.metrics import Metrics
from arpo_verl.records.run import Run
from arpo_verl.records.run_summary import RunSummary, summarize_run
from arpo_verl.records.starts import read_starts
from arpo_verl.records.summaries import EpisodeSummary
from arpo_verl.viewer.report.costs import Faults, TaskTime, Timing, desktop_calls, faults, slowest_tasks, step_parts
from arpo_verl.viewer.report.rates import Rate, success_rate
from arpo_verl.viewer.report.replay import ReplayEffect, replay_effect
from arpo_verl.viewer.report.samples import Samples, choose_samples
from arpo_verl.viewer.report.success import (
    StepSuccess,
    TaskSuccess,
    by_step,
    by_task,
    group_by,
    is_validation,
    validations,
)


@dataclass(frozen=True)
class StopReasonShare:
    """How many episodes ended so, and how many of these the evaluator gave the full score."""

    reason: str
    share: float
    success: Rate


@dataclass(frozen=True)
class Times:
    """Unix times; None where nothing tells."""

    begin: float | None
    end: float | None
    end_is: str
    """What `end` is the time of."""


@dataclass(frozen=True)
class RunReport:
    """One run. What it did not record is None or empty."""

    name: str
    run_dir: Path
    made_at: datetime.datetime
    live: bool
    summary: RunSummary | None
    starts: list[dict[str, Any]]
    times: Times
    metrics: Metrics
    num_training: int
    num_validation: int
    partial_scores: int
    steps: list[StepSuccess]
    validations: list[StepSuccess]
    tasks: list[TaskSuccess]
    replay: ReplayEffect
    faults: Faults
    parts: list[Timing]
    calls: list[Timing]
    slowest: list[TaskTime]
    stop_reasons: list[StopReasonShare]
    samples: Samples
    missing: list[str]
    """What the run does not tell, in sentences."""


def gather(run: Run) -> RunReport:
    """Read the run and put its report together."""
    snapshot, metrics = run.snapshot(), run.metrics()
    validation = [episode for episode in snapshot.episodes if is_validation(episode)]
    training = [episode for episode in snapshot.episodes if not is_validation(episode)]
    tasks = by_task(training, validation)
    starts = list(read_starts(run.run_dir))
    replay = replay_effect(snapshot.index.groups(), training, metrics)
    return RunReport(
        name=run.name,
        run_dir=run.run_dir,
        made_at=datetime.datetime.now().astimezone(),
        live=run.is_live(),
        summary=_summary(run.run_dir),
        starts=starts,
        times=_times(run.run_dir, starts, snapshot.episodes),
        metrics=metrics,
        num_training=len(training),
        num_validation=len(validation),
        partial_scores=sum(0 < episode.success < 1 for episode in snapshot.episodes if episode.success is not None),
        steps=by_step(training, metrics),
        validations=validations(validation, metrics),
        tasks=tasks,
        replay=replay,
        faults=faults(metrics, _quarantined(run.run_dir), dict(snapshot.broken)),
        parts=step_parts(metrics),
        calls=desktop_calls(metrics),
        slowest=slowest_tasks(training),
        stop_reasons=_stop_reasons(training),
        samples=choose_samples(run, training, tasks),
        missing=_missing(starts, metrics, snapshot.episodes, replay),
    )


def _summary(run_dir: Path) -> RunSummary | None:
    try:
        return summarize_run(run_dir)
    except (ConfigError, OSError, KeyError, TypeError):  # no metrics yet, or a file that is none
        return None


def _times(run_dir: Path, starts: Sequence[dict[str, Any]], episodes: Sequence[EpisodeSummary]) -> Times:
    begun = [episode.started_at for episode in episodes if episode.started_at is not None]
    begun += [start["time"] for start in starts if isinstance(start.get("time"), (int, float))]
    ended = [e.started_at + (e.wall_s or 0.0) for e in episodes if e.started_at is not None]
    if ended:
        return Times(min(begun), max(ended), "last episode ended")
    try:
        end: float | None = (run_dir / METRICS_FILE).stat().st_mtime
    except OSError:
        end = None
    return Times(min(begun, default=None), end, "metrics last written")


def _quarantined(run_dir: Path) -> list[str]:
    try:
        tasks = read_json_object(run_dir / POOL_FILE).get("quarantined")
    except (OSError, ValueError):
        return []
    tasks = tasks if isinstance(tasks, list) else []
    return [str(task.get("task_id") if isinstance(task, dict) else task) for task in tasks]


def _stop_reasons(training: Sequence[EpisodeSummary]) -> list[StopReasonShare]:
    by_reason = group_by((episode.stop_reason, episode) for episode in training)
    counts = Counter(episode.stop_reason for episode in training)
    return [
        StopReasonShare(reason, count / len(training), success_rate(by_reason[reason]))
        for reason, count in counts.most_common()
    ]


def _missing(
    starts: Sequence[object], metrics: Metrics, episodes: Sequence[EpisodeSummary], replay: ReplayEffect
) -> list[str]:
    told = {
        "No recipe and no versions: the run has no starts.jsonl (it was not begun by a recipe's RunCallback, or is "
        "older).": bool(starts),
        f"No metrics: there is no {METRICS_FILE} (trainer.logger must contain `file`).": bool(metrics.steps),
        "No episodes: none is recorded (gui_agent.trajectory_dir, gui_agent.record).": bool(episodes),
        "Replays by task and age, and what groups would have taught without them: no groups.jsonl is beside the "
        "episodes.": replay.has_groups_file or not episodes,
        "When episodes began and how long they took: an older recorder wrote them.": not episodes
        or any(episode.wall_s is not None for episode in episodes),
    }
    return [sentence for sentence, is_told in told.items() if not is_told]
