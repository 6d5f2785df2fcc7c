"""Does replay pay? ARPO against GRPO and dynamic sampling on the same tasks, at equal environment steps, over seeds.

    python benchmarks/learning.py [--smoke] [--json PATH] [--plot PATH] [--work DIR] [--methods M ...] [--seeds N]
        [--best METHOD]

Trains a small policy on the hardest quarter of the embedded suite with the stock trainer, one process after the other,
once for each method and seed, until each run's agents took the same number of steps on desktops. All runs share the
warm start, the tasks and every hyper-parameter. `base` is the warm start itself: the first training step of every run.
It and the last checkpoint of each run are judged on the training tasks and on held-out variants, at temperature 1 and
0.6. What is run in which order, and when it ends, docs/learning.md says beforehand.

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
from learning_runs import BASE, METHODS, TEMPERATURES, Curve, Study, Validation, judge, train
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
MAIN_SEEDS, SEEDS = 8, 3
"""Runs of the two methods that the study is about and of the best of the others; and of each other one, by which the
best is chosen."""
MAIN_METHODS = ("grpo", "arpo")
TOP_P = 0.9
"""Of OSWorld's runner of UI-TARS, and of all methods: what lies beyond is noise of the vocabulary's tail."""
TARGET_SUCCESS, FLOOR = 0.18, 0.04
"""Of the warm start, over all tasks and of each."""


def main() -> None:
    arguments = _arguments()
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="learning-"))).absolute()
    study = prepare(work, arguments.smoke, arguments.environment_steps)
    runs = _runs(arguments.methods, arguments.seeds, arguments.best)
    curves = [
        train(study, work, method, seed, f"{number}/{len(runs)} {method}, seed {seed}")
        for number, (method, seed) in enumerate(runs, start=1)
    ]
    judged = {
        (method, seed): {temperature: judge(study, work, method, seed, temperature) for temperature in TEMPERATURES}
        for method, seed in [(BASE, 1), *runs]
    }
    figures = summarize(study, judged, curves, arguments.best)
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
    parser.add_size("--seeds", MAIN_SEEDS, 1, "at most so many runs of each method")
    parser.add_argument(
        "--best", choices=[m for m in METHODS if m not in MAIN_METHODS], help="run as often as the main ones"
    )
    parser.add_size("--environment-steps", 1200, 60, "of each run")
    arguments = parser.parse()
    arguments.methods = arguments.methods or (["grpo", "arpo"] if arguments.smoke else list(METHODS))
    return arguments


def _runs(methods: Sequence[str], seeds: int, best: str | None) -> list[tuple[str, int]]:
    """Method and seed of every run, the first seeds of all methods before any further one: a slow hour meets all."""
    often = {*MAIN_METHODS, best}
    runs = [(m, seed) for m in methods for seed in range(1, min(seeds, MAIN_SEEDS if m in often else SEEDS) + 1)]
    return sorted(runs, key=lambda run: run[1])


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
        top_p=TOP_P,
    )


# --- Figures -------------------------------------------------------------------------------------------------------


def summarize(
    study: Study,
    judged: Mapping[tuple[str, int], Mapping[float, Validation]],
    curves: Sequence[Curve],
    best: str | None = None,
) -> dict[str, Any]:
    """Everything that is reported, in plain values; shares in [0, 1], differences in points of percent.

    Args:
        judged: of method and seed, what the last checkpoint came to at each temperature; of `base` the warm start.
        best: the method that was chosen by the first seeds: what it is ahead of ARPO is of the later ones alone.
    """
    final: dict[str, dict[int, float]] = {}
    methods: dict[str, Any] = {}
    for method in dict.fromkeys(curve.method for curve in curves):
        of_method = [curve for curve in curves if curve.method == method]
        final[method] = {curve.seed: curve.final_success(study.environment_steps) for curve in of_method}
        methods[method] = _row(study, of_method, final[method])
    summary: dict[str, Any] = {
        # All tasks are in every step, and the first is played before the first update.
        "base": interval([curve.points[0].success for curve in curves]),
        "all_failed_at_start": statistics.fmean(curve.points[0].all_failed for curve in curves),
        "wall_s": sum(curve.wall_s for curve in curves),
        **differences(final, best),
    }
    for tasks in ("training_tasks", "held_out"):
        by_temperature = {}
        for temperature in TEMPERATURES:
            success: dict[str, dict[int, float]] = {}
            for (method, seed), validations in judged.items():
                success.setdefault(method, {})[seed] = getattr(validations[temperature], tasks)
            shares = {method: interval(list(by_seed.values())) for method, by_seed in success.items()}
            by_temperature[str(temperature)] = {**shares, **differences(success, best)}
        summary[tasks] = {**by_temperature[str(TEMPERATURES[0])], "by_temperature": by_temperature}
    settings = {name: value for name, value in asdict(study).items() if not isinstance(value, Path)}
    return {"settings": settings, "summary": summary, "methods": methods, "curves": [asdict(curve) for curve in curves]}


def differences(success: Mapping[str, Mapping[int, float]], best: str | None = None) -> dict[str, Any]:
    """Of each method from GRPO and from ARPO; and of `best` from ARPO, over the seeds that did not choose it."""
    found: dict[str, Any] = {}
    for reference in MAIN_METHODS:
        for other in (m for m in success if m != BASE and m not in MAIN_METHODS[: MAIN_METHODS.index(reference) + 1]):
            if reference in success:
                found[f"{other}_minus_{reference}_points"] = difference(success[other], success[reference])
    if best is not None and {best, "arpo"} <= success.keys():
        fresh = {seed: share for seed, share in success[best].items() if seed > SEEDS}
        found["best_minus_arpo_points"] = difference(fresh, success["arpo"])
    return found


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
        "| method | seeds | success, last third | training tasks, at 1.0 | at 0.6 | held-out, at 1.0 | at 0.6 "
        "| groups that teach | replays | training steps | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        f"| base | | {' | '.join([_percent(summary['base']), *_judged(summary, BASE)])} | | | | |",
    ]
    for method, row in figures["methods"].items():
        cells = [method, str(len(row["success_by_seed"]))]
        cells += [_percent(row["success"]), *_judged(summary, method)]
        cells += [f"{100 * row['informative_share']:.0f}%", f"{row['replays']:.0f}", f"{row['training_steps']:.0f}"]
        lines.append(f"| {' | '.join(cells)} | {row['wall_s'] / 60:.1f} |")
    lines.append(f"\ngroups that failed whole at the start: {100 * summary['all_failed_at_start']:.0f}%")
    lines.append(f"all runs together: {summary['wall_s'] / 60:.0f} minutes")
    for title, values in (
        ("", summary),
        *((f"{name}, at 1.0: ", summary[name]) for name in ("training_tasks", "held_out")),
    ):
        for name, value in values.items():
            if name.endswith("_points") and value["low"] is not None:
                seeds = ", ".join(f"{points:+.1f}" for points in value["by_seed"].values())
                bounds = f"({value['low']:+.1f} to {value['high']:+.1f})"
                lines.append(f"{title}{name}: {value['mean']:+.1f} {bounds}; by seed {seeds}")
    return "\n".join(lines)


def _judged(summary: Mapping[str, Any], method: str) -> list[str]:
    of = [summary[tasks]["by_temperature"] for tasks in ("training_tasks", "held_out")]
    return [_percent(by_temperature[str(temperature)][method]) for by_temperature in of for temperature in TEMPERATURES]


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
