"""Makes the page's documents of a folder of runs: their list, their curves in one plot, and pairs by task."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from arpo_verl.records.json_files import as_number
from arpo_verl.records.layout import METRICS_FILE
from arpo_verl.records.metrics_files import MetricsFiles
from arpo_verl.records.run import Run
from arpo_verl.records.run_summary import RunSummary, summarize, validation_success
from arpo_verl.records.runs import RunsFolder
from arpo_verl.records.starts import read_starts
from arpo_verl.tools.evaluation.paired import pair
from arpo_verl.tools.viewer.documents import rounded
from arpo_verl.tools.viewer.evaluation import evaluation_document, has_evaluation
from arpo_verl.tools.viewer.overview.success import group_by, is_validation

VALIDATION = "validation success"
"""A curve whose name in the logs differs between runs."""
SUCCESS = "rollout/success_mean"
MOST_PICKED = 12
MOST_PAIRED = 1000
"""Most tasks of a pair; a test of more would take seconds."""
_HEADLINES = ("steps", "validation_before", "validation_after", "first_steps_success", "last_steps_success")
_SECONDS = ("timing_s/step", "timing_s/testing")
_EPISODES = ("data.train_batch_size", "actor_rollout_ref.rollout.n")


class RunsFeed:
    """Makes the documents of a folder of runs. It reads changed metrics files again, and keeps only summaries."""

    def __init__(self, folder: RunsFolder) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._listed: dict[str, tuple[Run, tuple[int, ...], RunSummary | None]] = {}

    def runs_document(self) -> dict[str, Any]:
        """Make `api/runs`: each run's kind, state and headline, or null without one."""
        with self._lock:
            names = self.folder.names()
            self._listed = {name: self._look_at(name) for name in names}
            listed = dict(self._listed)
        rows = [_row(name, run, summary) for name, (run, _, summary) in listed.items()]
        return {"name": self.folder.name, "runs": rows}

    def _look_at(self, name: str) -> tuple[Run, tuple[int, ...], RunSummary | None]:
        """Look at a run with the list's own `Run`, which reads only folders, and no episodes."""
        known = self._listed.get(name)
        path = self.folder.path / name
        run = known[0] if known is not None else Run(path, path / "trajectories")
        signature = _signature(path)
        if known is not None and known[1] == signature:
            return known
        return run, signature, _summary(path)


def _signature(run_dir: Path) -> tuple[int, ...]:
    try:
        status = (run_dir / METRICS_FILE).stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _rows(run_dir: Path) -> dict[int, dict[str, float]]:
    files = MetricsFiles(run_dir)
    files.refresh()
    return files.by_step()


def _summary(run_dir: Path) -> RunSummary | None:
    rows = _rows(run_dir)
    return summarize(run_dir, rows) if rows else None


def _row(name: str, run: Run, summary: RunSummary | None) -> dict[str, Any]:
    headline = {field: getattr(summary, field) if summary is not None else None for field in _HEADLINES}
    evaluation = None
    if has_evaluation(run):
        table = evaluation_document(run)["table"]
        overall = [row for row in table if row["domain"] is None]
        evaluation = max(overall, key=lambda row: row["budget"] or 0, default=None)
    starts = read_starts(run.run_dir)
    return {
        "name": name,
        "kind": "training" if evaluation is None else "evaluation",
        "live": run.is_live(),
        "num_episodes": run.count_episodes(),
        "total_steps": as_number(starts[-1].get("total_steps")) if starts else None,
        **headline,
        "evaluation": evaluation,
    }


# --- Curves ----------------------------------------------------------------------------------------------------------


def curves_document(folder: RunsFolder, names: Sequence[str], metric: str) -> dict[str, Any]:
    """Make `api/curves`: one metric of some runs, by training step, environment steps and hours.

    Raises:
        KeyError: there is no run with one of the names.
    """
    picked = [(name, _rows(folder.run(name).run_dir)) for name in names[:MOST_PICKED]]
    known = sorted({name for _, rows in picked for row in rows.values() for name in row})
    runs = [_curve(name, rows, metric, folder.run(name).run_dir) for name, rows in picked]
    return {"metric": metric, "metrics": [VALIDATION, *known], "runs": runs}


def _curve(name: str, rows: Mapping[int, Mapping[str, float]], metric: str, run_dir: Path) -> dict[str, Any]:
    """Make the curve of the training steps with the metric. Environment steps are the trainer's count of turns of
    training episodes; null if the run did not record how many episodes a step has."""
    hours = itertools.accumulate(sum(row.get(timer, 0.0) for timer in _SECONDS) / 3600 for row in rows.values())
    episodes = _episodes_a_step(run_dir)
    turns = itertools.accumulate(row.get("rollout/turns_mean", 0.0) * (episodes or 0) for row in rows.values())
    values = [validation_success(row) if metric == VALIDATION else row.get(metric) for row in rows.values()]
    points = [
        (step, round(turned), rounded(hour), rounded(value))
        for step, turned, hour, value in zip(rows, turns, hours, values, strict=True)
        if value is not None
    ]
    steps, turned, hour, shown = ([point[i] for point in points] for i in range(4))
    return {
        "name": name,
        "steps": steps,
        "environment_steps": turned if episodes is not None else None,
        "hours": hour,
        "values": shown,
    }


def _episodes_a_step(run_dir: Path) -> float | None:
    starts = read_starts(run_dir)
    sizes = [as_number(starts[-1]["recipe"].get(name)) for name in _EPISODES] if starts else [None]
    known = [size for size in sizes if size is not None]
    return known[0] * known[1] if len(known) == len(_EPISODES) else None


# --- Two runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scores:
    """Tasks' mean scores."""

    what: str
    """Which episodes these are."""
    by_task: dict[str, float]


def pair_document(first: Run, second: Run) -> dict[str, Any]:
    """Make `api/pair`: two runs paired by task, second minus first, as in `evaluate --compare`. An evaluation counts
    with the largest turn budget that both have, a training run with its last recorded validation."""
    budgets = [_budgets(run) for run in (first, second)]
    shared = budgets[0] & budgets[1] if all(budgets) else budgets[0] | budgets[1]
    scores = [_scores(run, max(shared, default=None)) for run in (first, second)]
    shared_tasks = sorted(scores[0].by_task.keys() & scores[1].by_task.keys())
    both = shared_tasks[:MOST_PAIRED]
    paired = [[one.by_task[task_id] for task_id in both] for one in scores]
    result = pair(*paired) if both else None
    changed = sorted(zip(both, *paired, strict=True), key=lambda row: -abs(row[2] - row[1]))
    return {
        "first": {"name": first.name, "what": scores[0].what, "tasks": len(scores[0].by_task)},
        "second": {"name": second.name, "what": scores[1].what, "tasks": len(scores[1].by_task)},
        "paired": {**dataclasses.asdict(result), "told_apart": result.told_apart} if result is not None else None,
        "left_out": len(shared_tasks) - len(both),
        "tasks": [{"task_id": task_id, "first": a, "second": b} for task_id, a, b in changed],
    }


def _budgets(run: Run) -> set[float]:
    if not has_evaluation(run):
        return set()
    return {row["budget"] for row in evaluation_document(run)["table"] if row["budget"] is not None}


def _scores(run: Run, budget: float | None) -> _Scores:
    if has_evaluation(run):
        tasks = evaluation_document(run)["tasks"]
        runs = {task["task_id"]: [one["success"] for one in task["runs"] if one["budget"] == budget] for task in tasks}
        known = {task_id: [score for score in scores if score is not None] for task_id, scores in runs.items()}
        return _Scores(f"evaluation of at most {budget} turns", _means(known.items()))
    episodes = [episode for episode in run.snapshot().episodes if episode.success is not None]
    validations = [episode for episode in episodes if is_validation(episode)]
    if not validations:
        return _Scores("no recorded validation", {})
    last = max(episode.step for episode in validations)
    by_task = group_by((episode.task_id, episode) for episode in validations if episode.step == last)
    scores = {task_id: [e.success for e in one if e.success is not None] for task_id, one in by_task.items()}
    return _Scores(f"validation after training step {last}", _means(scores.items()))


def _means(scores: Iterable[tuple[str, Sequence[float]]]) -> dict[str, float]:
    return {task_id: fmean(values) for task_id, values in scores if values}
