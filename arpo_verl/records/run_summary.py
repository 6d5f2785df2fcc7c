"""Summarizes a run's results, from the metrics file of veRL's own `file` logger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from arpo_verl.lib.untrusted import printable
from arpo_verl.records.ended_starts import read_faults
from arpo_verl.records.layout import CHECKPOINTS, METRICS_FILE, TRAJECTORIES
from arpo_verl.records.metrics_files import MetricsFiles, require_metrics
from arpo_verl.records.starts import read_starts
from arpo_verl.replay.config import ReplayConfig

# Enough steps to average out sampling noise, few enough to show both ends of a short run.
WINDOW = 5


@dataclass(frozen=True)
class RunSummary:
    """A run's results. Success rates are in [0, 1]; None if the run did not measure them."""

    run_dir: Path
    steps: int
    validation_before: float | None
    validation_after: float | None
    first_steps_success: float | None
    last_steps_success: float | None
    replays_injected: int
    replays_added: int
    """Those of them that stood beside a group."""
    replay_method: str | None
    seconds_per_step: float | None
    probs_diff_max: float | None
    dropped_sessions: int
    faults: tuple[str, ...]
    """What ended starts early, the first one first."""


def summarize_run(run_dir: Path) -> RunSummary:
    """Summarize the run in this `run_dir`, over all its starts.

    Raises:
        ConfigError: the run has no metrics.
    """
    files = MetricsFiles(run_dir)
    if not files.refresh():  # a start that resumes the run has moved its file aside
        require_metrics(run_dir / METRICS_FILE)
    return summarize(run_dir, files.by_step())


def summarize(run_dir: Path, rows: Mapping[int, Mapping[str, float]]) -> RunSummary:
    """Summarize a run from the numbers of each training step."""
    training = [data for data in rows.values() if "rollout/success_mean" in data]
    successes = [data["rollout/success_mean"] for data in training]
    validations = [value for data in rows.values() if (value := validation_success(data)) is not None]
    step_seconds = [data["timing_s/step"] for data in training if "timing_s/step" in data]
    diffs = [diff for data in training if (diff := _probs_diff(data)) is not None]
    return RunSummary(
        run_dir=run_dir,
        steps=len(training),
        validation_before=validations[0] if validations else None,
        validation_after=validations[-1] if len(validations) > 1 else None,
        first_steps_success=fmean(successes[:WINDOW]) if successes else None,
        last_steps_success=fmean(successes[-WINDOW:]) if successes else None,
        replays_injected=int(sum(data.get("replay/injected", 0) for data in training)),
        replays_added=int(sum(data.get("replay/added", 0) for data in training)),
        replay_method=_replay_method(run_dir),
        seconds_per_step=fmean(step_seconds) if step_seconds else None,
        probs_diff_max=max(diffs, default=None),
        dropped_sessions=int(sum(data.get("environment/dropped_sessions", 0) for data in training)),
        faults=tuple(fault.sentence for fault in read_faults(run_dir)),
    )


def _probs_diff(data: Mapping[str, float]) -> float | None:
    """Return the step's largest difference without replayed rows, which an older policy wrote."""
    name = "training/rollout_probs_diff_max"
    return data.get(f"replay/without/{name}", None if data.get("replay/injected") else data.get(name))


def _replay_method(run_dir: Path) -> str | None:
    """Return the method of the last start; None if it did not replay, or nobody noted it."""
    starts = read_starts(run_dir)
    recipe = starts[-1]["recipe"] if starts else {"replay.enable": False}
    if not recipe.get("replay.enable", True):
        return None
    return printable(str(recipe.get("replay.method", ReplayConfig.method)))


def format_summary(summary: RunSummary) -> str:
    """Format the summary in lines for a terminal."""

    def percent(value: float | None) -> str:
        return "not measured" if value is None else f"{100 * value:.1f}%"

    def number(value: float | None, unit: str = "") -> str:
        return "not measured" if value is None else f"{value:.3g}{unit}"

    replays = str(summary.replays_injected)
    if summary.replays_injected and summary.replay_method is not None:
        replays += f" by {summary.replay_method}"
    if summary.replays_added:
        replays += f", {summary.replays_added} of them beside groups"
    successes = {
        f"success, first {WINDOW} steps": summary.first_steps_success,
        f"success, last {WINDOW} steps": summary.last_steps_success,
    }
    if summary.steps <= WINDOW:
        successes = {"success of these steps": summary.last_steps_success}
    checkpoints = summary.run_dir / CHECKPOINTS
    trajectories = summary.run_dir / TRAJECTORIES
    lines = [
        f"steps                        {summary.steps} ({number(summary.seconds_per_step, ' s')} each)",
        f"success, first validation    {percent(summary.validation_before)}",
        f"success, last validation     {percent(summary.validation_after)}",
        *(f"{name:29}{percent(value)}" for name, value in successes.items()),
        f"replays injected             {replays}",
        f"sessions dropped             {summary.dropped_sessions}",
        f"rollout/trainer probs diff   {number(summary.probs_diff_max)} at most, without replayed rows",
        f"metrics                      {summary.run_dir / METRICS_FILE}",
        f"checkpoint                   {checkpoints if checkpoints.exists() else 'none saved'}",
        f"trajectories                 {trajectories if trajectories.exists() else 'none recorded'}",
    ]
    if summary.faults:
        lines.insert(1, f"starts that a fault ended    {len(summary.faults)}; the last: {summary.faults[-1]}")
    return "\n".join(lines)


def validation_success(data: Mapping[str, float]) -> float | None:
    """Return a validation row's success rate. veRL's name for it contains data source and sample count."""
    names = (name for name in data if name.startswith("val-") and "/success/mean@" in name)
    return data.get(next(names, "val/success_mean"))
