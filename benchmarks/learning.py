"""Does replay pay? ARPO against GRPO and dynamic sampling on the same tasks, at equal environment steps, over seeds.

    python benchmarks/learning.py [--smoke] [--json PATH] [--plot PATH] [--work DIR] [--methods M ...] [--seeds N]

Trains a small policy on the hardest quarter of the embedded suite with the stock trainer, one process after the other,
once for each method and seed, until each run's agents took the same number of steps on desktops. All runs share the
warm start, the tasks and every hyper-parameter. `base` is the warm start itself: the first training step of every run,
and a validation of its own. See docs/learning.md.

The study goes on where it was stopped when it is given its `--work` again; a finished run is read, not repeated. It
takes a small model on eight tasks that it may learn by heart: it shows what replay does to learning where many groups
fail, not what a 7B model would reach.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from figures import write
from held_out import check_solvable, write_variants
from learning_runs import METHODS, Curve, Study, Validation, train, validate_base
from scipy.stats import t
from trainer_run import copy_tasks, make_policy, trainer_arguments

TASKS = (
    "form-order-juice",
    "calculator-to-dialog",
    "code-copy-seven",
    "list-scroll-zebra",
    "code-copy-four",
    "files-delete-old",
    "files-new-folder",
    "password-log-in",
)
"""The quarter of the suite that the warm start solves least often: 0 to 4 of 12 rollouts each."""
SMOKE_TASKS = ("dialog-follow-right", "scale-volume-one", "scale-volume-three", "password-log-in")
SEEDS = {"grpo": 4, "arpo": 4, **dict.fromkeys(list(METHODS)[2:], 3)}
"""Runs of each method, in this order: the two that the study is about are told apart best."""
MAIN_METHODS = ("grpo", "arpo")
TARGET_SUCCESS, FLOOR = 0.18, 0.04
"""Of the warm start, over all tasks and of each."""


def main() -> None:
    arguments = _arguments()
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="learning-"))).absolute()
    study = prepare(work, arguments.smoke, arguments.environment_steps)
    runs = _runs(arguments.methods, arguments.seeds)
    curves = [
        train(study, work, method, seed, f"{number}/{len(runs)} {method}, seed {seed}")
        for number, (method, seed) in enumerate(runs, start=1)
    ]
    figures = summarize(study, validate_base(study, work), curves)
    print(table(figures))
    write(figures, arguments.json)
    if arguments.plot:
        plot(curves, study.environment_steps, figures["summary"]["base"]["mean"], arguments.plot)


def _arguments() -> argparse.Namespace:
    parser = trainer_arguments(__doc__, "four tasks, two methods, few steps")
    parser.add_argument("--plot", type=Path, help="draw the curves there, as PNG or SVG")
    parser.add_argument(
        "--methods", nargs="+", choices=list(METHODS), help="by default all; with --smoke grpo and arpo"
    )
    parser.add_size("--seeds", max(SEEDS.values()), 1, "at most so many runs of each method")
    parser.add_size("--environment-steps", 1200, 60, "of each run")
    arguments = parser.parse()
    arguments.methods = arguments.methods or (["grpo", "arpo"] if arguments.smoke else list(METHODS))
    return arguments


def _runs(methods: Sequence[str], seeds: int) -> list[tuple[str, int]]:
    """Method and seed of every run. GRPO and ARPO take turns, so that a slow hour meets both."""
    runs = [(method, seed) for method in methods for seed in range(1, min(seeds, SEEDS[method]) + 1)]
    return sorted(runs, key=lambda run: run[1] if run[0] in MAIN_METHODS else len(runs))


def prepare(work: Path, smoke: bool, environment_steps: int) -> Study:
    """Tasks, their held-out variants, each of them solvable, and the policy that all runs start from."""
    task_ids = SMOKE_TASKS if smoke else TASKS
    tasks = copy_tasks(work / "tasks", task_ids)
    held_out = work / "held_out"
    if not held_out.is_dir():
        check_solvable(write_variants(held_out, task_ids))
    options = ["--tasks", str(tasks)] if smoke else []
    options += ["--target-success", str(TARGET_SUCCESS), "--floor", str(FLOOR)]
    return Study(
        policy=make_policy(work / "policy", *options),
        tasks=tasks,
        held_out=held_out,
        environment_steps=environment_steps,
        group_size=2,
        groups_per_task=2,
        learning_rate=2e-4,
        validate_every=1 if smoke else 4,
    )


# --- Figures -------------------------------------------------------------------------------------------------------


def summarize(study: Study, base: Validation, curves: Sequence[Curve]) -> dict[str, Any]:
    """Everything that is reported, in plain values; shares in [0, 1], differences in points of percent."""
    final: dict[str, dict[int, float]] = {}
    methods: dict[str, Any] = {}
    for method in dict.fromkeys(curve.method for curve in curves):
        of_method = [curve for curve in curves if curve.method == method]
        final[method] = {curve.seed: curve.final_success(study.environment_steps) for curve in of_method}
        methods[method] = _row(study, of_method, final[method])
    summary: dict[str, Any] = {
        # All tasks are in every step, and the first is played before the first update.
        "base": interval([curve.points[0].success for curve in curves]),
        "base_validation_training_tasks": base.training_tasks,
        "base_validation_held_out": base.held_out,
        "all_failed_at_start": statistics.fmean(curve.points[0].all_failed for curve in curves),
        "wall_s": sum(curve.wall_s for curve in curves),
    }
    for reference in MAIN_METHODS:
        for other in (m for m in final if m not in MAIN_METHODS[: MAIN_METHODS.index(reference) + 1]):
            if reference in final:
                summary[f"{other}_minus_{reference}_points"] = difference(final[other], final[reference])
    settings = {name: value for name, value in asdict(study).items() if not isinstance(value, Path)}
    return {"settings": settings, "summary": summary, "methods": methods, "curves": [asdict(curve) for curve in curves]}


def _row(study: Study, curves: Sequence[Curve], final: Mapping[int, float]) -> dict[str, Any]:
    ended = [point for curve in curves for point in curve.ended(study.environment_steps)]
    validations = [v for curve in curves if (v := curve.last_validation(study.environment_steps)) is not None]
    return {
        "success": interval(list(final.values())),
        "success_by_seed": final,
        "validation_training_tasks": interval([v.training_tasks for v in validations]),
        "validation_held_out": interval([v.held_out for v in validations]),
        "all_failed_at_start": statistics.fmean(curve.points[0].all_failed for curve in curves),
        "informative_share": statistics.fmean(point.informative for point in ended),
        "replays": statistics.fmean(curve.replays for curve in curves),
        "episodes": statistics.fmean(sum(p.episodes for p in curve.points) for curve in curves),
        "environment_steps": statistics.fmean(curve.points[-1].environment_steps for curve in curves),
        "training_steps": len(ended) / len(curves),
        "wall_s": statistics.fmean(curve.wall_s for curve in curves),
    }


def difference(success: Mapping[int, float], reference: Mapping[int, float]) -> dict[str, Any]:
    """In points, paired by seed: runs of one seed meet the tasks in one order."""
    by_seed = {seed: 100 * (success[seed] - reference[seed]) for seed in success if seed in reference}
    return {**interval(list(by_seed.values())), "by_seed": by_seed}


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
    summary = figures["summary"]
    lines = [
        "| method | seeds | success, last third | at 0.6, training tasks | at 0.6, held-out | groups that teach "
        "| replays | training steps | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| base | | {_percent(summary['base'])} | {100 * summary['base_validation_training_tasks']:.1f}% "
        f"| {100 * summary['base_validation_held_out']:.1f}% | | | | |",
    ]
    for method, row in figures["methods"].items():
        cells = [method, str(len(row["success_by_seed"]))]
        cells += [_percent(row[name]) for name in ("success", "validation_training_tasks", "validation_held_out")]
        cells += [f"{100 * row['informative_share']:.0f}%", f"{row['replays']:.0f}", f"{row['training_steps']:.0f}"]
        lines.append(f"| {' | '.join(cells)} | {row['wall_s'] / 60:.1f} |")
    lines.append(f"\ngroups that failed whole at the start: {100 * summary['all_failed_at_start']:.0f}%")
    lines.append(f"all runs together: {summary['wall_s'] / 60:.0f} minutes")
    for name, value in summary.items():
        if name.endswith("_points") and value["low"] is not None:
            seeds = ", ".join(f"{points:+.1f}" for points in value["by_seed"].values())
            lines.append(f"{name}: {value['mean']:+.1f} ({value['low']:+.1f} to {value['high']:+.1f}); by seed {seeds}")
    return "\n".join(lines)


def _percent(value: Mapping[str, float | None]) -> str:
    if value["mean"] is None:
        return "–"
    text = f"{100 * value['mean']:.1f}%"
    return text if value["low"] is None else f"{text} ({100 * value['low']:.0f}–{100 * (value['high'] or 0):.0f})"


def plot(curves: Sequence[Curve], budget: int, base: float, path: Path) -> None:
    """Success by environment steps: the mean over seeds, with the band from the worst seed to the best.

    Args:
        base: success of the warm start, in [0, 1].
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    methods = list(dict.fromkeys(curve.method for curve in curves))
    colors = dict(zip(methods, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    variants = [m for m in methods if m.startswith("arpo")]
    panels = [[m for m in methods if m == "arpo" or m not in variants], *([variants] if len(variants) > 1 else [])]
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 4), sharey=True, squeeze=False)
    grid = range(0, budget + 1, max(1, budget // 100))
    for panel, names in zip(axes[0], panels, strict=True):
        for method in names:
            runs = [curve for curve in curves if curve.method == method]
            rows = [[100 * run.success_at(steps, budget / 5, budget) for steps in grid] for run in runs]
            by_step = list(zip(*rows, strict=True))
            panel.plot(grid, [statistics.fmean(values) for values in by_step], label=method, color=colors[method])
            low, high = ([pick(values) for values in by_step] for pick in (min, max))
            panel.fill_between(grid, low, high, alpha=0.15, color=colors[method], linewidth=0)
        panel.axhline(100 * base, label="warm start", color="gray", linestyle="--", linewidth=1)
        panel.set(xlabel="environment steps", xlim=(0, budget), ylim=(0, None))
        panel.legend(loc="upper left")
        panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("success on the training tasks, %")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
