"""Does it carry over? ARPO and GRPO on 128 generated tasks, and then tasks that no run was trained on.

    python benchmarks/held_out.py --work DIR [--smoke] [--json PATH] [--plot PATH] [--runs N]

docs/held-out.md fixes the design beforehand. Each seed has a training run of each method with the stock trainer. Its
last checkpoint, and the warm start once for each seed, then play the training tasks and the held-out ones.

A run is in the figures as soon as it is evaluated, and a run that is there is read, not repeated: the study resumes
where it was stopped if you give its `--json` again, on another machine too, and within a run if you give its `--work`.
The same command in a second terminal runs another seed beside the first: two runs at once keep two cores busy.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import learning
import numpy as np
from figures import write
from filelock import FileLock, Timeout
from learning_runs import BASE, Curve, Result, Study, evaluate, train
from trainer_run import ROOT, trainer_arguments

from arpo_verl.tasks.families import GeneratedTask, generate

FAMILIES = ("press", "choose", "tick", "two")
"""The families of the training tasks, which the warm start reads best."""
# fmt: off
TRAINING = (
    0, 13, 19, 24, 35, 67, 68, 72, 74, 77, 83, 91, 95, 120, 122, 125, 139, 162, 173, 176, 191, 218, 223, 229, 230,
    251, 263, 278, 283, 284, 290, 293, 294, 299, 302, 314, 320, 325, 331, 332, 337, 348, 359, 373, 377, 384, 404, 428,
    440, 443, 452, 464, 473, 475, 476, 481, 506, 529, 535, 542, 565, 577, 583, 589, 595, 596, 607, 611, 617, 625, 642,
    649, 667, 668, 679, 686, 707, 709, 714, 727, 756, 761, 767, 770, 776, 817, 839, 842, 846, 857, 860, 871, 872, 889,
    890, 905, 914, 918, 923, 924, 938, 949, 955, 971, 973, 978, 983, 989, 1016, 1027, 1031, 1032, 1044, 1046, 1050,
    1051, 1063, 1067, 1068, 1074, 1081, 1091, 1112, 1118, 1135, 1145, 1153, 1154,
)
# fmt: on
"""Numbers of the training tasks."""
SPLITS = ("held_out_seeds", "held_out_words", "held_out_themes")
UNSEEN = "held_out_families"
TASKS_A_SPLIT, UNSEEN_TASKS = 160, 48
FIRST_HELD_OUT = 2000
"""The number from which held-out tasks are taken. No held-out task had a part in a choice or in a pilot."""
METHODS = ("grpo", "arpo")
SEEDS = 5
ENVIRONMENT_STEPS = 3500
TEMPERATURE = 0.6
"""At which warm start and checkpoints are evaluated: the paper's."""
DESIGN = ("docs/held-out.md", "benchmarks/held_out.py")
NAMES = {BASE: "warm_start"}
COMPARED = (("arpo", BASE), ("grpo", BASE), ("arpo", "grpo"))
"""Methods, and what each is compared with."""
Summarize = Callable[["HeldOutStudy", Sequence[Mapping[str, Any]], int, str], dict[str, Any]]
LEAN = (
    "trainer.logger=[file]",
    "trainer.v1.sampler.sampler_kwargs.log_val_episodes=0",
    "environment.status_file=null",
)
"""Off: curves, film strips and a live view that no figure is made of."""


@dataclass(frozen=True)
class HeldOutStudy(Study):
    """A study in which a training step has some of the tasks, and which evaluates each task once."""

    groups_a_step: int
    evaluated_rollouts: ClassVar[int] = 1

    @property
    def groups(self) -> int:
        """Groups in a training step."""
        return self.groups_a_step

    def overrides(self, method: str, seed: int) -> list[str]:
        """The options behind the recipe."""
        return [*super().overrides(method, seed), *LEAN]


def main() -> None:
    arguments = _arguments()
    work = arguments.work.absolute()
    study = prepare(work, arguments.smoke)
    path = arguments.json or work / "held_out.json"
    runs = planned(1 if arguments.smoke else SEEDS)
    done = 0
    while done != arguments.runs and run_next(study, work, runs, path, summarize, DESIGN):
        done += 1
    if path.is_file():
        with FileLock(f"{path}.lock"):
            figures = summarize(study, read_rows(study, path), len(runs), _design_commit(path, DESIGN))
            write(figures, path)
        print(table(figures))
        if arguments.by_difficulty:
            for name, values in by_difficulty([Result.read(row) for row in figures["runs"]]).items():
                cells = [_cell(value, 1, "+") for key, value in values.items() if key != "tasks"]
                print(f"| {name} | {values['tasks']:.0f} | {' | '.join(cells)} |")
        if arguments.plot:
            plot(figures, arguments.plot)


def _arguments() -> argparse.Namespace:
    parser = trainer_arguments(__doc__, "four tasks, one seed, few steps")
    parser.add_argument("--plot", type=Path, help="draw the curves there, as PNG or SVG")
    parser.add_argument("--by-difficulty", action="store_true", help="also by how often the warm start solves a task")
    parser.add_argument("--runs", type=int, metavar="N", help="end after so many more runs; by default all")
    arguments = parser.parse()
    if arguments.work is None:
        parser.error("--work is missing: name the folder that keeps the runs, so that they can be resumed")
    return arguments


def planned(seeds: int) -> list[tuple[str, int]]:
    """Method and seed of every run in their order, seed after seed."""
    return [(method, seed) for seed in range(1, seeds + 1) for method in (BASE, *METHODS)]


def prepare(work: Path, smoke: bool) -> HeldOutStudy:
    """Write the tasks and the warm start."""
    splits = [(split, FAMILIES, 4 if smoke else TASKS_A_SPLIT) for split in SPLITS]
    splits.append((UNSEEN, (), 2 if smoke else UNSEEN_TASKS))
    held_out = (task for split in splits for task in held_out_tasks(*split))
    return HeldOutStudy(**common_settings(work, held_out, smoke), group_size=2, groups_a_step=4 if smoke else 32)


def common_settings(work: Path, held_out: Iterable[GeneratedTask], smoke: bool) -> dict[str, Any]:
    """Write the tasks and the warm start, the shipped policy that sees; return what a study has beside its groups."""
    numbers = TRAINING[: 4 if smoke else None]
    return {
        "policy": learning.ship_policy(work),
        "tasks": learning.write_tasks(work / "tasks", (generate("training", number) for number in numbers)),
        "held_out": learning.write_tasks(work / "held_out", held_out),
        "environment_steps": 60 if smoke else ENVIRONMENT_STEPS,
        "groups_per_task": 1,
        "learning_rate": 2e-4,
        "save_every": 1,
        "top_p": learning.TOP_P,
    }


def held_out_tasks(split: str, families: Sequence[str], count: int) -> Iterator[GeneratedTask]:
    """The first tasks of a split from `FIRST_HELD_OUT` on; of these families alone, if there are any."""
    tasks = (generate(split, number) for number in itertools.count(FIRST_HELD_OUT))
    return itertools.islice((task for task in tasks if not families or task.family in families), count)


def run_next(
    study: HeldOutStudy,
    work: Path,
    runs: Sequence[tuple[str, int]],
    path: Path,
    summarize: Summarize,
    design: Sequence[str],
) -> bool:
    """Train and evaluate the first run that is neither in the figures nor under way, and add it to them.

    Args:
        summarize: makes the figures of the study, its rows, the number of planned runs and the design's commit.
        design: the files that must be committed before the first run.

    Returns:
        Whether there was one.

    Raises:
        RuntimeError: a trainer failed.
        SystemExit: the figures at `path` are of another study, or the design is not committed.
    """
    for number, (method, seed) in enumerate(runs, start=1):
        lock = FileLock(work / f"{method}-{seed}.running")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        with lock:
            if (method, seed) in {(row["curve"]["method"], row["curve"]["seed"]) for row in read_rows(study, path)}:
                continue
            commit = _git("rev-parse", "HEAD")
            design_commit = _design_commit(path, design)
            curve = Curve(BASE, seed, (), 0, 0.0)
            if method != BASE:
                curve = train(study, work, method, seed, f"{number}/{len(runs)} {method}, seed {seed}")
            evaluated = {str(TEMPERATURE): evaluate(study, work, method, seed, TEMPERATURE)}
            policy = hashlib.sha256((study.policy / "model.safetensors").read_bytes()).hexdigest()
            row = asdict(Result(policy, curve, evaluated)) | {"commit": commit, "cores": os.cpu_count()}
            with FileLock(f"{path}.lock"):
                rows = [*read_rows(study, path), row]
                rows.sort(key=lambda one: runs.index((one["curve"]["method"], one["curve"]["seed"])))
                write(summarize(study, rows, len(runs), design_commit), path)
            return True
    return False


def read_rows(study: HeldOutStudy, path: Path) -> list[dict[str, Any]]:
    """The runs in the figures at `path`; none where there is no file.

    Raises:
        SystemExit: the figures are of another study.
    """
    learning.read_results(path, study)
    rows: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.is_file() else []
    return rows


def _design_commit(path: Path, design: Sequence[str]) -> str:
    """The commit of the design that these figures follow: the last one that changed it before the first run.

    Raises:
        SystemExit: the design has changes that are not committed.
    """
    if path.is_file():
        return str(json.loads(path.read_text())["design_commit"])
    if design and _git("status", "--porcelain", "--", *design):
        raise SystemExit(f"commit {' and '.join(design)} before the first run: they are the design that it follows")
    return _git("log", "-1", "--format=%H", "--", *design)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


# --- Figures -------------------------------------------------------------------------------------------------------


def summarize(study: HeldOutStudy, rows: Sequence[Mapping[str, Any]], planned: int, design: str) -> dict[str, Any]:
    """Everything that is reported, in plain values: shares in [0, 1], differences in points of percent."""
    results = [Result.read(row) for row in rows]
    curves = [result.curve for result in results if result.curve.method != BASE]
    by_method = {method: [curve for curve in curves if curve.method == method] for method in METHODS}
    budget = study.environment_steps
    return {
        "complete": len(rows) == planned,
        "design_commit": design,
        "settings": learning.settings(study),
        "summary": {
            "held_out": {
                **outcome(results, lambda task: split_of(task) in SPLITS),
                "by_split": {one: outcome(results, lambda task, one=one: split_of(task) == one) for one in SPLITS},
                "by_family": {
                    one: outcome(results, lambda task, one=one: split_of(task) in SPLITS and task.endswith(f"-{one}"))
                    for one in FAMILIES
                },
            },
            "training": outcome(results, lambda task: split_of(task) == "training"),
            "held_out_families": outcome(results, lambda task: split_of(task) == UNSEEN),
        },
        "methods": {
            method: learning.method_row(study, runs, {run.seed: run.final_success(budget) for run in runs})
            for method, runs in by_method.items()
            if runs
        },
        "runs": list(rows),
    }


def outcome(
    results: Sequence[Result], keep: Callable[[str], bool], compared: Sequence[tuple[str, str]] = COMPARED
) -> dict[str, Any]:
    """Success of the warm start and of each method's last checkpoints on some tasks, and the differences by seed.

    Args:
        keep: whether a task counts, by its id.
        compared: methods, and what each is compared with.
    """
    shares: dict[str, dict[int, dict[str, float]]] = {}
    for result in results:
        by_task = result.evaluated[str(TEMPERATURE)].items()
        if kept := {task_id: share for task_id, share in by_task if keep(task_id)}:
            shares.setdefault(result.curve.method, {})[result.curve.seed] = kept
    success = {one: {seed: statistics.fmean(kept.values()) for seed, kept in of.items()} for one, of in shares.items()}
    found: dict[str, Any] = {NAMES.get(one, one): learning.interval(list(of.values())) for one, of in success.items()}
    for one, other in compared:
        if {one, other} <= success.keys():
            name = f"{one}_minus_{NAMES.get(other, other)}_points"
            found[name] = learning.difference(success[one], success[other])
            found[name] |= resampled(shares[one], shares[other])
    return found


def resampled(
    success: Mapping[int, Mapping[str, float]], reference: Mapping[int, Mapping[str, float]]
) -> dict[str, Any]:
    """95% interval of the difference in points where seeds and tasks are drawn anew: it is also about other tasks.

    Args:
        success, reference: by seed, the share of each task. Tasks that every row has count.
    """
    both = sorted(success.keys() & reference.keys())
    if len(both) < 2:
        return {"resampled_low": None, "resampled_high": None}
    tasks = sorted(set.intersection(*(set(rows[seed]) for rows in (success, reference) for seed in both)))
    points = 100 * np.array([[success[seed][task] - reference[seed][task] for task in tasks] for seed in both])
    draw = np.random.default_rng(0)
    of_seeds, of_tasks = (draw.multinomial(count, [1 / count] * count, 10_000) / count for count in points.shape)
    means = ((of_seeds @ points) * of_tasks).sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return {"resampled_low": float(low), "resampled_high": float(high)}


def split_of(task_id: str) -> str:
    """The split of a generated task, by its id."""
    return task_id.split("-")[0]


def by_difficulty(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Outcomes by how often the warm start solves a task; not of the design.

    A task's difficulty for a seed is judged by the warm start's plays of the other seeds: those of the seed itself
    would make the tasks that it failed by chance seem to gain.
    """
    plays = {result.curve.seed: result.evaluated[str(TEMPERATURE)] for result in results if result.curve.method == BASE}
    tasks = [task for task in next(iter(plays.values())) if split_of(task) in SPLITS]
    most = len(plays) - 1
    classes = {"always": [most], "sometimes": range(1, most), "never": [0]}
    found = {}
    for name, counts in {**classes, "not always": range(most)}.items():
        of_seed = {
            seed: {t for t in tasks if sum(plays[o][t] > 0.5 for o in plays if o != seed) in counts} for seed in plays
        }
        found[name] = {"tasks": statistics.fmean(map(len, of_seed.values()))}
        for one, other in COMPARED:
            success = {
                method: {
                    result.curve.seed: statistics.fmean(result.evaluated[str(TEMPERATURE)][t] for t in kept)
                    for result in results
                    if result.curve.method == method and (kept := of_seed[result.curve.seed])
                }
                for method in (one, other)
            }
            found[name][f"{one} - {NAMES.get(other, other)}"] = learning.difference(success[one], success[other])
    return found


def table(figures: Mapping[str, Any]) -> str:
    """The figures as two Markdown tables."""
    summary = figures["summary"]
    held_out = summary["held_out"]
    parts = {"held-out tasks": held_out, "training tasks": summary["training"]}
    parts |= {**held_out["by_split"], **held_out["by_family"], "unseen families": summary["held_out_families"]}
    names = ("warm_start", *METHODS)
    differences = [name for name in held_out if name.endswith("_points")]
    lines = [f"| tasks | {' | '.join((*names, *differences))} |", f"|{'---|' * (1 + len(names) + len(differences))}"]
    for title, values in parts.items():
        cells = [_cell(values.get(name), 100, "") for name in names]
        cells += [_cell(values.get(name), 1, "+") for name in differences]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += ["", "| method | replays | groups that teach | training steps | minutes |", "|---|---|---|---|---|"]
    for method, row in figures["methods"].items():
        cells = [method, f"{row['replays']:.0f}", f"{100 * row['informative_share']:.0f}%"]
        lines.append(f"| {' | '.join(cells)} | {row['training_steps']:.0f} | {row['wall_s'] / 60:.1f} |")
    lines.append(f"\n{len(figures['runs'])} runs, {'all' if figures['complete'] else 'not all'} that are planned")
    return "\n".join(lines)


def _cell(value: Mapping[str, float | None] | None, scale: float, sign: str) -> str:
    """A mean with its interval."""
    if value is None or value["mean"] is None:
        return "–"
    mean, low, high = (None if value[name] is None else scale * value[name] for name in ("mean", "low", "high"))  # type: ignore[operator]
    return f"{mean:{sign}.1f}" if low is None else f"{mean:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def plot(figures: Mapping[str, Any], path: Path) -> None:
    """Success while training, and the differences of the last checkpoints, with 95% intervals over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves = [result.curve for result in map(Result.read, figures["runs"]) if result.curve.method != BASE]
    budget, summary = figures["settings"]["environment_steps"], figures["summary"]
    figure, (training, last) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(1, 1.15))
    for number, method in enumerate(METHODS):
        runs = [curve for curve in curves if curve.method == method]
        grid = range(0, budget + 1, max(1, budget // 100))
        by_step = [
            learning.interval([100 * run.success_at(steps, budget / 5, budget) for run in runs]) for steps in grid
        ]
        means, low, high = ([one[name] for one in by_step] for name in ("mean", "low", "high"))
        training.plot(grid, means, label=method.upper(), color=f"C{number}")
        if len(runs) > 1:
            training.fill_between(grid, low, high, alpha=0.15, color=f"C{number}", linewidth=0)
    training.set(xlabel="environment steps", ylabel="success on the training tasks, %", xlim=(0, budget), ylim=(0, 100))
    training.legend(loc="upper left")
    names = {
        "grpo_minus_warm_start_points": ("GRPO − warm start", "C0"),
        "arpo_minus_warm_start_points": ("ARPO − warm start", "C1"),
        "arpo_minus_grpo_points": ("ARPO − GRPO", "black"),
    }
    parts = {
        "held-out": summary["held_out"],
        "training": summary["training"],
        "unseen families": summary["held_out_families"],
    }
    rows = [
        (f"{part}: {title}", values[name], color)
        for part, values in parts.items()
        for name, (title, color) in names.items()
        if name in values
    ]
    for place, (_, value, color) in enumerate(rows):
        last.plot(list(value["by_seed"].values()), [place] * len(value["by_seed"]), ".", color=color, alpha=0.4)
        if value["low"] is not None:
            half = value["high"] - value["mean"]
            last.errorbar(value["mean"], place, xerr=half, fmt="D", color=color, capsize=4, markersize=5)
    last.axvline(0, color="gray", linestyle="--", linewidth=1)
    last.set(
        xlabel="difference in points, last checkpoints", yticks=range(len(rows)), yticklabels=[row[0] for row in rows]
    )
    last.invert_yaxis()
    for panel in (training, last):
        panel.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
