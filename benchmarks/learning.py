"""Does replay pay? ARPO against GRPO and dynamic sampling on the same tasks, at equal environment steps, over seeds.

    python benchmarks/learning.py [--smoke] [--json PATH] [--plot PATH] [--work DIR] [--methods M ...] [--seeds N]
        [--best METHOD]

Trains the policy that sees on generated tasks with the stock trainer, one process after the other, once for each method
and seed, until each run's agents took the same number of steps on desktops. All runs share the warm start, the tasks
and every hyper-parameter. `base` is the warm start itself: the first training step of every run. It and the last
checkpoint of each run are evaluated on the training tasks and on held-out ones (other seeds, words, themes and
families), at temperature 1 and 0.6. What is run in which order, and when it ends, docs/learning.md says beforehand.

Each run is in the figures as soon as it is evaluated, and a run that is there is read, not repeated: the study goes on
where it was stopped when it is given its `--json` again, on another machine too, and in the midst of a run with its
`--work`. The model is small and so are its tasks: it shows what replay does to learning where many groups fail, and
what of that reaches tasks that were not trained on, not what a 7B model would reach.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from figures import write
from learning_runs import (
    BASE,
    EVALUATED_ON,
    HELD_OUT_SPLITS,
    METHODS,
    TEMPERATURES,
    Curve,
    Result,
    Study,
    evaluate,
    train,
)
from scipy.stats import t
from trainer_run import trainer_arguments

from arpo_verl.lib.files import write_whole
from arpo_verl.tasks.families import GeneratedTask, generate

FAMILIES = ("follow", "close")
"""Those that the warm start seldom solves."""
TRAINING = (22, 39, 45, 46, 70, 87, 106, 112, 117, 142, 148, 166, 178, 189, 202, 237)
"""Numbers of the training tasks, see docs/learning.md."""
HELD_OUT, FIRST_HELD_OUT = 8, 1000
"""Tasks of each held-out split, and the number from which they are looked for: nothing was ever chosen by those."""
MAIN_SEEDS, SEEDS = 7, 2
"""The last seed of the two methods that the study is about and of the best of the others; and of each other one, by
which the best is chosen."""
FIRST_SEEDS = 5
"""Of the two methods, before anything else is run."""
MAIN_METHODS = ("grpo", "arpo")
TOP_P = 0.9
"""Of OSWorld's runner of UI-TARS, and of all methods: what lies beyond is noise of the vocabulary's tail."""


def main() -> None:
    arguments = _arguments()
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="learning-"))).absolute()
    study = prepare(work, arguments.smoke, arguments.environment_steps)
    runs = _runs(arguments.methods, arguments.seeds, arguments.best)
    results = run_study(study, work, runs, arguments.json, partial(summarize, study, best=arguments.best))
    figures = summarize(study, results, arguments.best)
    print(table(figures))
    if arguments.plot:
        curves = [result.curve for result in results if result.curve.method != BASE]
        plot(curves, study.environment_steps, figures["summary"]["base"]["mean"], arguments.plot)


def run_study(
    study: Study,
    work: Path,
    runs: Sequence[tuple[str, int]],
    path: Path | None,
    summarize: Callable[[Iterable[Result]], Mapping[str, Any]],
) -> list[Result]:
    """Train and evaluate what is not in the figures at `path` yet, and write it there, run after run.

    Args:
        runs: method and seed of each, in their order.
        summarize: makes the figures of all results so far, with their `settings` and `runs`.

    Raises:
        SystemExit: the figures there are of another study, or a seed's runs began from another warm start.
    """
    policy = hashlib.sha256((study.policy / "model.safetensors").read_bytes()).hexdigest()
    results = read_results(path, study)
    to_come = [run for run in runs if run not in results]
    if to_come and policy not in {result.policy for (method, _), result in results.items() if method == BASE}:
        to_come.insert(0, (BASE, to_come[0][1]))
    for number, (method, seed) in enumerate(to_come, start=1):
        others = {result.policy for (_, its_seed), result in results.items() if its_seed == seed} - {policy}
        if others:
            raise SystemExit(
                f"seed {seed} was begun from the warm start {others}, and the one in {work} is {policy}: its runs are "
                "compared with one another; go on with that one, or take that seed's runs out of the figures"
            )
        curve = Curve(BASE, seed, (), 0, 0.0)
        if method != BASE:
            curve = train(study, work, method, seed, f"{number}/{len(to_come)} {method}, seed {seed}")
        evaluated = {str(temperature): evaluate(study, work, method, seed, temperature) for temperature in TEMPERATURES}
        results[method, seed] = Result(policy, curve, evaluated)
        if method != BASE:
            write(summarize(results.values()), path)
    write(summarize(results.values()), path)
    return list(results.values())


def read_results(path: Path | None, study: Study) -> dict[tuple[str, int], Result]:
    """What an earlier invocation has written, by method and seed.

    Raises:
        SystemExit: the file is none of a study, or of one with other settings.
    """
    if path is None or not path.is_file():
        return {}
    try:
        figures = json.loads(path.read_text())
        found, results = figures["settings"], [Result.read(row) for row in figures["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} must hold figures of this study, got {error!r}; name another file") from error
    if found != settings(study):
        raise SystemExit(f"{path} is of a study with the settings {found}, not {settings(study)}")
    return {(result.curve.method, result.curve.seed): result for result in results}


def settings(study: Study) -> dict[str, Any]:
    """What two machines' runs must have alike to be compared."""
    options = {name: value for name, value in asdict(study).items() if not isinstance(value, Path)}
    tasks = b"".join(
        path.read_bytes() for folder in (study.tasks, study.held_out) for path in sorted(folder.glob("*.json"))
    )
    return options | {"tasks": hashlib.sha256(tasks).hexdigest(), "evaluated_rollouts": study.evaluated_rollouts}


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
    parser.add_size("--environment-steps", 500, 60, "of each run")
    arguments = parser.parse()
    if arguments.seeds < 1:
        parser.error(f"--seeds must be 1 or more, got {arguments.seeds}")
    arguments.methods = arguments.methods or (["grpo", "arpo"] if arguments.smoke else list(METHODS))
    return arguments


def _runs(methods: Sequence[str], seeds: int, best: str | None) -> list[tuple[str, int]]:
    """Method and seed of every run, in docs/learning.md's order: seed after seed, as a slow hour then meets all."""
    others = [method for method in methods if method not in MAIN_METHODS]
    parts = [
        (MAIN_METHODS, range(1, FIRST_SEEDS + 1)),
        (others, range(1, SEEDS + 1)),
        ((*MAIN_METHODS, best) if best else (), range(SEEDS + 1, MAIN_SEEDS + 1)),
    ]
    runs = [(m, s) for of_part, numbers in parts for s in numbers for m in of_part if m in methods and s <= seeds]
    return list(dict.fromkeys(runs))


def prepare(work: Path, smoke: bool, environment_steps: int) -> Study:
    """Generated tasks, held-out ones, and the shipped policy that sees, from which all runs start."""
    training = (generate("training", number) for number in TRAINING[: 4 if smoke else None])
    held_out = (task for split in HELD_OUT_SPLITS for task in _held_out(split, 1 if smoke else HELD_OUT))
    return Study(
        policy=ship_policy(work),
        tasks=write_tasks(work / "tasks", training),
        held_out=write_tasks(work / "held_out", held_out),
        environment_steps=environment_steps,
        group_size=2,
        groups_per_task=1,
        learning_rate=2e-4,
        save_every=1,
        top_p=TOP_P,
    )


def ship_policy(work: Path) -> Path:
    """The shipped policy that sees, written into the folder that is worked in."""
    policy = work / "policy"
    if not policy.is_dir():
        subprocess.run([sys.executable, "-m", "arpo_verl.tools.policy", "seeing", "--out", str(policy)], check=True)
    return policy


def _held_out(split: str, count: int) -> Iterator[GeneratedTask]:
    """The first tasks of a split: all of its families, where they are held out, and else of the training tasks'."""
    tasks = (generate(split, number) for number in itertools.count(FIRST_HELD_OUT))
    families = (task for task in tasks if split == "held_out_families" or task.family in FAMILIES)
    return itertools.islice(families, count)


def write_tasks(folder: Path, tasks: Iterable[GeneratedTask]) -> Path:
    """Make the folder have these tasks and no others. It is never empty meanwhile: another call may be reading it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {folder / f"{task.spec['id']}.json": json.dumps(task.spec).encode() for task in tasks}
    for path in set(folder.iterdir()) - content.keys():
        path.unlink()
    for path, spec in content.items():
        if not path.is_file() or path.read_bytes() != spec:
            write_whole(path, spec)
    return folder


# --- Figures -------------------------------------------------------------------------------------------------------


def summarize(study: Study, results: Iterable[Result], best: str | None = None) -> dict[str, Any]:
    """Everything that is reported, in plain values; shares in [0, 1], differences in points of percent.

    Args:
        results: of the runs, and as `base` of their warm starts.
        best: the method that was chosen by the first seeds: what it is ahead of ARPO is of the later ones alone.
    """
    results = list(results)
    curves = [result.curve for result in results if result.curve.method != BASE]
    final: dict[str, dict[int, float]] = {}
    methods: dict[str, Any] = {}
    for method in dict.fromkeys(curve.method for curve in curves):
        of_method = [curve for curve in curves if curve.method == method]
        final[method] = {curve.seed: curve.final_success(study.environment_steps) for curve in of_method}
        methods[method] = method_row(study, of_method, final[method])
    summary: dict[str, Any] = {
        # All tasks are in every step, and the first is played before the first update.
        # The methods' first steps of one seed are one draw, but for what ends first.
        "base": interval(list(_by_seed(curves, lambda curve: curve.points[0].success).values())),
        "all_failed_at_start": statistics.fmean(curve.points[0].all_failed for curve in curves),
        "wall_s": sum(curve.wall_s for curve in curves),
        **differences(final, best),
    }
    ratios = {"environment_steps_ratio": best or "arpo", **({"arpo_environment_steps_ratio": "arpo"} if best else {})}
    for name, method in ratios.items():
        summary[name] = {"method": method, **steps_ratio(curves, method, study.environment_steps)}
    return {
        "settings": settings(study),
        "summary": summary | evaluated_success(study, results, best),
        "methods": methods,
        "runs": [asdict(result) for result in results],
    }


def evaluated_success(study: Study, results: Sequence[Result], best: str | None = None) -> dict[str, Any]:
    """Success of the last checkpoints by method, and differences, by the tasks and at each temperature."""
    summary: dict[str, Any] = {}
    for tasks, splits in EVALUATED_ON.items():
        by_temperature = {}
        for temperature in TEMPERATURES:
            success: dict[str, dict[int, float]] = {}
            for result in results:
                by_task = result.evaluated[str(temperature)]
                of_splits = [
                    share for task_id, share in by_task.items() if task_id.startswith(tuple(f"{s}-" for s in splits))
                ]
                success.setdefault(result.curve.method, {})[result.curve.seed] = statistics.fmean(of_splits)
            shares = {method: interval(list(by_seed.values())) for method, by_seed in success.items()}
            by_temperature[str(temperature)] = {**shares, **differences(success, best)}
        summary[tasks] = {**by_temperature[str(TEMPERATURES[0])], "by_temperature": by_temperature}
    return summary


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


def steps_ratio(curves: Sequence[Curve], method: str, budget: int) -> dict[str, Any]:
    """Environment steps in which a method comes to GRPO's final success, over those of GRPO, by seed.

    A run that does not come there counts as if it did at the end: its ratio is then too low. Seeds at which GRPO ended
    no higher than it began are left out, and so are those that chose the method.
    """
    runs = {(curve.method, curve.seed): curve for curve in curves}
    by_seed = {}
    for (name, seed), curve in runs.items():
        reference = runs.get((MAIN_METHODS[0], seed))
        final = reference.final_success(budget) if reference is not None else 0.0
        chosen_by = method not in MAIN_METHODS and seed <= SEEDS
        if name == method and not chosen_by and reference is not None and final > reference.points[0].success:
            steps, needed = (one.steps_to(final, budget / 5, budget) for one in (curve, reference))
            by_seed[seed] = steps / needed
    return {**interval(list(by_seed.values())), "by_seed": by_seed}


def method_row(study: Study, curves: Sequence[Curve], final: Mapping[int, float]) -> dict[str, Any]:
    """What happened in the training runs of one method, as means over them; `final` is their success at the end."""
    ended = [point for curve in curves for point in curve.ended(study.environment_steps)]
    return {
        "success": interval(list(final.values())),
        "success_by_seed": final,
        "lowest": _lowest(curves, study.environment_steps),
        "all_failed_at_start": statistics.fmean(curve.points[0].all_failed for curve in curves),
        "informative_share": statistics.fmean(point.informative for point in ended),
        "replays": statistics.fmean(curve.replays for curve in curves),
        "episodes": statistics.fmean(sum(p.episodes for p in curve.points) for curve in curves),
        "environment_steps": statistics.fmean(curve.points[-1].environment_steps for curve in curves),
        "training_steps": len(ended) / len(curves),
        "wall_s": statistics.fmean(curve.wall_s for curve in curves),
    }


def _lowest(curves: Sequence[Curve], budget: int) -> float:
    """The smallest success on the way, of the mean over seeds and a moving fifth of the budget."""
    moments = (budget * tenth / 10 for tenth in range(11))
    return min(statistics.fmean(c.success_at(at, budget / 5, budget) for c in curves) for at in moments)


def _by_seed(curves: Iterable[Curve], value: Callable[[Curve], float]) -> dict[int, float]:
    """The mean over methods."""
    values: dict[int, list[float]] = {}
    for curve in curves:
        values.setdefault(curve.seed, []).append(value(curve))
    return {seed: statistics.fmean(of_seed) for seed, of_seed in values.items()}


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
        f"| base | | {' | '.join([_percent(summary['base']), *evaluated_cells(summary, BASE)])} | | | | |",
    ]
    for method, row in figures["methods"].items():
        cells = [method, str(len(row["success_by_seed"]))]
        cells += [_percent(row["success"]), *evaluated_cells(summary, method)]
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


def evaluated_cells(summary: Mapping[str, Any], method: str) -> list[str]:
    """Success on training tasks and held-out ones, at each temperature."""
    sides = [summary[tasks]["by_temperature"] for tasks in ("training_tasks", "held_out")]
    return [_percent(side[str(temperature)][method]) for side in sides for temperature in TEMPERATURES]


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
