"""Does replay pay? ARPO against GRPO and dynamic sampling on the same tasks, at equal environment steps, over seeds.

    python benchmarks/learning.py [--smoke] [--json PATH] [--plot PATH] [--work DIR] [--methods M ...] [--seeds N]

Trains a small policy on the harder half of the embedded suite with the stock trainer, one process after the other, once
for each method and seed, until each run's agents took the same number of steps on desktops. All runs share the warm
start, the tasks and every hyper-parameter. `base` is the warm start itself: the first steps of every run, until each
task was played.

The study goes on where it was stopped when it is given its `--work` again; a finished run is read, not repeated. It
takes a small model on 16 tasks that it may learn by heart: it shows what replay does to learning where many groups
fail, not what a 7B model would reach.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from held_out import VARIANTS, check_solvable, write_variants
from learning_runs import METHODS, Curve, Study, train
from scipy.stats import t
from tqdm import tqdm

from arpo_verl.tasks.loader import EMBEDDED_DIR

TASKS = tuple(VARIANTS)
"""The half of the suite to which the demo's warm start gives the least probability."""
SMOKE_TASKS = ("dialog-follow-right", "scale-volume-one", "scale-volume-three", "password-log-in")
MAIN_METHODS = ("grpo", "dynamic_sampling", "arpo")
TARGET_SUCCESS, FLOOR = 0.25, 0.06
"""Of the warm start, over all tasks and of each."""


def main() -> None:
    arguments = _arguments()
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="learning-"))).absolute()
    study = prepare(work, arguments.smoke, arguments.environment_steps)
    curves = [_run(study, work, method, seed) for seed in range(1, arguments.seeds + 1) for method in arguments.methods]
    figures = summarize(study, curves)
    print(table(figures))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=1, default=str) + "\n")
    if arguments.plot:
        plot(curves, study.environment_steps, arguments.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="four tasks, two methods, two steps: does it run at all")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--plot", type=Path, help="draw the curves there, as PNG or SVG")
    parser.add_argument("--work", type=Path, help="folder to work in and keep")
    parser.add_argument(
        "--methods", nargs="+", choices=list(METHODS), help="by default all; with --smoke grpo and arpo"
    )
    parser.add_argument("--seeds", type=int, help="runs of each method; 3 by default, 1 with --smoke")
    parser.add_argument("--environment-steps", type=int, help="of each run; 2400 by default, 60 with --smoke")
    arguments = parser.parse_args()
    arguments.environment_steps = arguments.environment_steps or (60 if arguments.smoke else 2400)
    arguments.methods = arguments.methods or (["grpo", "arpo"] if arguments.smoke else list(METHODS))
    arguments.seeds = arguments.seeds or (1 if arguments.smoke else 3)
    return arguments


def prepare(work: Path, smoke: bool, environment_steps: int) -> Study:
    """Tasks, their held-out variants, each of them solvable, and the policy that all runs start from."""
    task_ids = SMOKE_TASKS if smoke else TASKS
    tasks, policy = work / "tasks", work / "policy"
    tasks.mkdir(parents=True, exist_ok=True)
    for task_id in task_ids:
        shutil.copy(EMBEDDED_DIR / f"{task_id}.json", tasks)
    held_out = work / "held_out"
    if not held_out.is_dir():
        check_solvable(write_variants(held_out, task_ids))
    command = [
        sys.executable,
        "-m",
        "arpo_verl.policy",
        "--out",
        str(policy),
        *(("--tasks", str(tasks)) if smoke else ()),
    ]
    subprocess.run([*command, "--target-success", str(TARGET_SUCCESS), "--floor", str(FLOOR)], check=True)
    return Study(
        policy=policy,
        tasks=tasks,
        held_out=held_out,
        environment_steps=environment_steps,
        group_size=4,
        groups=4 if smoke else 8,
        learning_rate=2e-4,
        validate_every=1 if smoke else 10,
    )


def _run(study: Study, work: Path, method: str, seed: int) -> Curve:
    with tqdm(total=study.environment_steps, desc=f"{method}, seed {seed}", unit="step") as progress:

        def show(steps: int) -> None:
            progress.update(steps - progress.n)

        return train(study, work, method, seed, show)


# --- Figures -------------------------------------------------------------------------------------------------------


def summarize(study: Study, curves: Sequence[Curve]) -> dict[str, Any]:
    """Everything that is reported, in plain values; shares in [0, 1], differences in points of percent."""
    budget = study.environment_steps
    # A step holds some of the tasks only: as many episodes as make each task's group once.
    epoch = len(list(study.tasks.glob("*.json"))) * study.group_size
    base = [curve.base_success(epoch) for curve in curves]
    final: dict[str, dict[int, float]] = {}
    methods: dict[str, Any] = {}
    for method in dict.fromkeys(curve.method for curve in curves):
        of_method = [curve for curve in curves if curve.method == method]
        final[method] = {curve.seed: curve.final_success(budget) for curve in of_method}
        validations = [v for curve in of_method if (v := curve.last_validation(budget)) is not None]
        methods[method] = {
            "success": interval(list(final[method].values())),
            "success_by_seed": final[method],
            "validation_training_tasks": interval([v.training_tasks for v in validations]),
            "validation_held_out": interval([v.held_out for v in validations]),
            "all_failed_at_start": statistics.fmean(p.all_failed for curve in of_method for p in curve.points[:2]),
            "informative_share": statistics.fmean(p.informative for curve in of_method for p in curve.points),
            "replays": statistics.fmean(curve.replays for curve in of_method),
            "episodes": statistics.fmean(sum(p.episodes for p in curve.points) for curve in of_method),
            "environment_steps": statistics.fmean(curve.points[-1].environment_steps for curve in of_method),
            "training_steps": statistics.fmean(len(curve.points) for curve in of_method),
            "wall_s": statistics.fmean(curve.wall_s for curve in of_method),
        }
    summary: dict[str, Any] = {"base": interval(base)}
    for other in final:
        if other != "grpo" and "grpo" in final:
            points = [100 * (final[other][seed] - final["grpo"][seed]) for seed in final["grpo"]]
            summary[f"{other}_minus_grpo_points"] = interval(points)
    settings = {name: value for name, value in asdict(study).items() if not isinstance(value, Path)}
    return {"settings": settings, "summary": summary, "methods": methods, "curves": [asdict(curve) for curve in curves]}


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean and 95% interval over seeds by Student's t; none of a single seed."""
    if not values:
        return {"mean": None, "low": None, "high": None}
    mean = statistics.fmean(values)
    if len(values) == 1:
        return {"mean": mean, "low": None, "high": None}
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def table(figures: Mapping[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| method | success, last quarter | validation, training tasks | validation, held-out | groups that teach "
        "| replays | training steps | minutes |",
        "|---|---|---|---|---|---|---|---|",
        f"| base | {_percent(figures['summary']['base'])} | | | | | | |",
    ]
    for method, row in figures["methods"].items():
        cells = [_percent(row[name]) for name in ("success", "validation_training_tasks", "validation_held_out")]
        cells += [f"{100 * row['informative_share']:.0f}%", f"{row['replays']:.0f}", f"{row['training_steps']:.0f}"]
        lines.append(f"| {method} | " + " | ".join([*cells, f"{row['wall_s'] / 60:.1f}"]) + " |")
    for name, value in figures["summary"].items():
        if name.endswith("_points") and value["low"] is not None:
            lines.append(f"\n{name}: {value['mean']:+.1f} ({value['low']:+.1f} to {value['high']:+.1f})")
    return "\n".join(lines)


def _percent(value: Mapping[str, float | None]) -> str:
    if value["mean"] is None:
        return "–"
    text = f"{100 * value['mean']:.1f}%"
    return text if value["low"] is None else f"{text} ({100 * value['low']:.0f}–{100 * (value['high'] or 0):.0f})"


def plot(curves: Sequence[Curve], budget: int, path: Path) -> None:
    """Success by environment steps: the mean over seeds, with the band from the worst seed to the best."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(8, 4.5))
    grid = np.linspace(0, budget, 100)
    for method in dict.fromkeys(curve.method for curve in curves):
        rows = []
        for curve in (c for c in curves if c.method == method):
            steps = np.array([p.environment_steps for p in curve.points])
            # Over five training steps: one alone is noise.
            window = np.ones(min(5, len(steps))) / min(5, len(steps))
            smooth = np.convolve([p.success for p in curve.points], window, mode="valid")
            rows.append(np.interp(grid, steps[len(window) - 1 :], 100 * smooth))
        (line,) = axes.plot(grid, np.mean(rows, axis=0), label=method)
        axes.fill_between(grid, np.min(rows, axis=0), np.max(rows, axis=0), alpha=0.15, color=line.get_color())
    axes.set(xlabel="environment steps", ylabel="success on the training tasks, %", xlim=(0, budget), ylim=(0, 100))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
