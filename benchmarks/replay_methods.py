"""Which replay method teaches most? All of them on the same tasks, and held-out tasks by difficulty.

    python benchmarks/replay_methods.py --work DIR --choose
    python benchmarks/replay_methods.py --work DIR [--smoke] [--json PATH] [--plot PATH] [--runs N]

docs/replay-methods.md fixes the design beforehand. `--choose` was done once: it plays candidates with the warm start
until there are enough held-out tasks of each class, and one success of each training task for the seeded store, and
writes both to `results/`. The second command is the study. It resumes as `held_out.py` does, and in a second terminal
it runs another seed beside the first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import held_out
import learning
from figures import RESULTS, write
from filelock import FileLock
from held_out import FAMILIES, SPLITS, TRAINING, HeldOutStudy, outcome, split_of
from learning_runs import BASE, Curve, Result
from scipy.stats import ttest_1samp
from trainer_run import trainer_arguments

from arpo_verl.tasks.families import GeneratedTask, generate
from arpo_verl.tools.evaluation.filtering import Fate

SEEDS_FROM = "replay.seed_from={seeds}"
ARMS: Mapping[str, tuple[str, ...]] = {
    "grpo": ("+baseline=grpo",),
    "arpo": (),
    "arpo_seeded": (SEEDS_FROM,),
    "rlep": (SEEDS_FROM, "replay.method=rlep", "+replay.method_options.most_added=1"),
    "exgrpo": (SEEDS_FROM, "replay.method=exgrpo"),
    "spear": (SEEDS_FROM, "replay.method=spear", "+replay.method_options.warm_up_steps=10"),
}
"""Options behind the common command line."""
CLASSES = {"with_room": (Fate.KEPT, 240), "never_solved": (Fate.TOO_FEW, 60), "solved_before": (Fate.TOO_MANY, 120)}
"""Of the held-out tasks: the fate of a task in the choice, and how many of these are taken."""
PRIMARY = "with_room"
TITLES = {
    "with_room": "sometimes solved",
    "never_solved": "never solved",
    "solved_before": "always solved",
    "training": "training tasks",
}
FIRST_CANDIDATE, CANDIDATES_AT_ONCE, ROLLOUTS = 5000, 240, 6
CHOSEN = RESULTS / "replay_methods_tasks.json"
SEEDS = RESULTS / "replay_methods_seeds"
DESIGN = ("docs/replay-methods.md", *(f"benchmarks/{name}" for name in ("replay_methods.py", f"results/{CHOSEN.name}")))
GOAL = 0.8
"""Success on the training tasks, by whose environment steps methods are compared too."""
COMPARED = tuple(
    [(arm, "grpo") for arm in ARMS if arm != "grpo"]
    + [(arm, "arpo") for arm in ARMS if arm not in ("grpo", "arpo")]
    + [(arm, BASE) for arm in ARMS]
)


@dataclass(frozen=True)
class MethodStudy(HeldOutStudy):
    """A study whose runs differ by the replay method, and by whether the store is seeded."""

    seeds: Path
    """The store of the seeded arms."""

    def overrides(self, method: str, seed: int) -> list[str]:
        """The options behind the recipe."""
        arm = [option.format(seeds=self.seeds) for option in ARMS.get(method, ())]
        return [*super().overrides("", seed), *arm]


def main() -> None:
    parser = trainer_arguments(__doc__, "four tasks, one seed, few steps; chooses its tasks and seeds itself")
    parser.add_argument("--choose", action="store_true", help="choose the held-out tasks and make the seeded store")
    parser.add_argument("--plot", type=Path, help="draw the differences there, as PNG or SVG")
    parser.add_argument("--runs", type=int, metavar="N", help="end after so many more runs; by default all")
    arguments = parser.parse()
    if arguments.work is None:
        parser.error("--work is missing: name the folder that keeps the runs, so that they can be resumed")
    work = arguments.work.absolute()
    chosen, seeds = (work / CHOSEN.name, work / SEEDS.name) if arguments.smoke else (CHOSEN, SEEDS)
    if arguments.choose or arguments.smoke:
        choose(work, chosen, 1 if arguments.smoke else None)
        seed_store(work, seeds, 4 if arguments.smoke else None)
    if not arguments.choose:
        run_study(arguments, work, chosen, seeds)


def run_study(arguments: argparse.Namespace, work: Path, chosen: Path, seeds: Path) -> None:
    """Train and evaluate what is not in the figures yet, and show them."""
    path = arguments.json or work / "replay_methods.json"
    runs = planned(1 if arguments.smoke else held_out.SEEDS)
    classes = held_out_classes(json.loads(chosen.read_text())["fates"], arguments.smoke)
    study = prepare(work, classes, seeds, arguments.smoke)

    def figures_of(study: HeldOutStudy, rows: Sequence[Mapping[str, Any]], planned: int, design: str) -> dict[str, Any]:
        return summarize(study, rows, planned, design, classes)

    design = () if arguments.smoke else DESIGN
    done = 0
    while done != arguments.runs and held_out.run_next(study, work, runs, path, figures_of, design):
        done += 1
    with FileLock(f"{path}.lock"):
        figures = json.loads(path.read_text())
    print(table(figures))
    if arguments.plot:
        plot(figures, arguments.plot)


def planned(seeds: int) -> list[tuple[str, int]]:
    """Arm and seed of every run in their order, seed after seed."""
    return [(arm, seed) for seed in range(1, seeds + 1) for arm in (BASE, *ARMS)]


def prepare(work: Path, classes: Mapping[str, Sequence[str]], seeds: Path, smoke: bool) -> MethodStudy:
    """Write the tasks and the warm start."""
    common = held_out.common_settings(work, map(task_of, itertools.chain(*classes.values())), smoke)
    return MethodStudy(**common, group_size=4, groups_a_step=4 if smoke else 16, seeds=seeds)


# --- The choice ----------------------------------------------------------------------------------------------------


def candidates() -> Iterator[GeneratedTask]:
    """Tasks of the training tasks' families, in the order in which they are tried."""
    for number in itertools.count(FIRST_CANDIDATE):
        yield from (task for split in SPLITS if (task := generate(split, number)).family in FAMILIES)


def task_of(task_id: str) -> GeneratedTask:
    """Generate a task by its id."""
    split, number, _ = task_id.split("-")
    return generate(split, int(number))


def choose(work: Path, path: Path, most_parts: int | None) -> None:
    """Play candidates until there are enough of each class; their fates are written after each part.

    Args:
        most_parts: of a smoke test, parts of four tasks; None plays until there are enough.
    """
    policy = learning.ship_policy(work)
    size = CANDIDATES_AT_ONCE if most_parts is None else 4
    fates: dict[str, str] = json.loads(path.read_text())["fates"] if path.is_file() else {}
    while len(fates) < size * (most_parts or sys.maxsize) and not _are_enough(fates):
        part = len(fates) // size
        tasks = list(itertools.islice(candidates(), part * size, (part + 1) * size))
        folder = learning.write_tasks(work / f"candidates-{part}", tasks)
        found = filter_tasks(policy, folder, f"1 <= successes <= {ROLLOUTS - 1}", work / f"choice-{part}")
        fates |= {task.spec["id"]: found[task.spec["id"]] for task in tasks}
        write({"fates": fates}, path)
        counts = {name: sum(one == fate for one in fates.values()) for name, (fate, _) in CLASSES.items()}
        print(f"{len(fates)} candidates: {counts}", flush=True)


def seed_store(work: Path, store: Path, most: int | None) -> None:
    """Make a store of one success of each training task, in at most six rollouts of the warm start."""
    if store.is_dir():
        return
    policy = learning.ship_policy(work)
    folder = learning.write_tasks(work / "tasks", (generate("training", number) for number in TRAINING[:most]))
    filter_tasks(policy, folder, "successes >= 1", work / "seeding")
    command = [sys.executable, "-m", "arpo_verl.tools.cli.main", "replay", "seed", str(work / "seeding")]
    command += ["--recipe", "families", "--set", f"actor_rollout_ref.model.path={policy}", "--out", str(work / "made")]
    subprocess.run(command, check=True)
    shutil.move(work / "made", store)


def filter_tasks(policy: Path, tasks: Path, keep: str, out: Path) -> dict[str, str]:
    """Run `arpo-verl filter-tasks` until every fate is certain. Returns the fate of each task."""
    command = [sys.executable, "-m", "arpo_verl.tools.cli.main", "filter-tasks", "--recipe", "families"]
    command += ["--model", str(policy), "--tasks", str(tasks), "--runs", str(ROLLOUTS), "--keep", keep, "--error", "0"]
    command += ["--top-p", str(learning.TOP_P), "--group-size", "4", "--out", str(out)]
    subprocess.run(command, check=False)  # 1 where it kept no task, or where faults left one unsettled
    return {task["task_id"]: task["fate"] for task in json.loads((out / "filter.json").read_text())["tasks"]}


def held_out_classes(fates: Mapping[str, str], smoke: bool = False) -> dict[str, list[str]]:
    """The held-out tasks of each class: the first ones, in the order in which they were tried.

    Raises:
        SystemExit: there are too few of a class.
    """
    if not smoke and not _are_enough(fates):
        raise SystemExit("the choice of the held-out tasks is not complete: --choose goes on with it")
    classes = {}
    for name, (fate, count) in CLASSES.items():
        classes[name] = [task_id for task_id, found in fates.items() if found == fate][:count]
    return classes


def _are_enough(fates: Mapping[str, str]) -> bool:
    return all(sum(found == fate for found in fates.values()) >= count for fate, count in CLASSES.values())


# --- Figures -------------------------------------------------------------------------------------------------------


def summarize(
    study: HeldOutStudy,
    rows: Sequence[Mapping[str, Any]],
    planned: int,
    design: str,
    classes: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Everything that is reported, in plain values: shares in [0, 1], differences in points of percent."""
    results = [Result.read(row) for row in rows]
    summary = {
        name: outcome(results, lambda task, of=frozenset(tasks): task in of, COMPARED)
        for name, tasks in classes.items()
    }
    summary["training"] = outcome(results, lambda task: split_of(task) == "training", COMPARED)
    for arm, p in holm({arm: _p(summary[PRIMARY].get(f"{arm}_minus_grpo_points")) for arm in ARMS}).items():
        summary[PRIMARY][f"{arm}_minus_grpo_points"]["p_holm"] = p
    curves = [result.curve for result in results]
    return {
        "complete": len(rows) == planned,
        "design_commit": design,
        "settings": learning.settings(study),
        "arms": {arm: arm_row(study, of) for arm in ARMS if (of := [c for c in curves if c.method == arm])},
        "summary": summary,
        "runs": list(rows),
    }


def arm_row(study: HeldOutStudy, curves: Sequence[Curve]) -> dict[str, Any]:
    """What happened in the training runs of one arm, as means over them."""
    budget = study.environment_steps
    row = learning.method_row(study, curves, {run.seed: run.final_success(budget) for run in curves})
    steps = learning.interval([run.steps_to(GOAL, budget / 5, budget) for run in curves])
    return row | {
        "options": ARMS[curves[0].method],
        "steps_to_goal": steps,
        "step_s": row["wall_s"] / row["training_steps"],
    }


def _p(difference: Mapping[str, Any] | None) -> float | None:
    """Of Student's t over the seeds, two-sided."""
    values = list(difference["by_seed"].values()) if difference is not None else []
    return float(ttest_1samp(values, 0).pvalue) if len(values) > 1 else None


def holm(ps: Mapping[str, float | None]) -> dict[str, float]:
    """Correct p-values for their number, by Holm's method."""
    known = sorted((p, name) for name, p in ps.items() if p is not None)
    corrected, so_far = {}, 0.0
    for number, (p, name) in enumerate(known):
        corrected[name] = so_far = min(1.0, max(so_far, p * (len(known) - number)))
    return corrected


def table(figures: Mapping[str, Any]) -> str:
    """The figures as two Markdown tables."""
    summary = figures["summary"]
    lines = [
        f"| points above GRPO | {' | '.join(TITLES[name] for name in summary)} | p |",
        f"|---|{'---|' * (len(summary) + 1)}",
    ]
    for arm in ("grpo", *(arm for arm in figures["arms"] if arm != "grpo")):
        name = arm if arm == "grpo" else f"{arm}_minus_grpo_points"
        scale, sign = (100, "") if arm == "grpo" else (1, "+")
        cells = [held_out._cell(part.get(name), scale, sign) for part in summary.values()]
        p = (summary[PRIMARY].get(name) or {}).get("p_holm")
        lines.append(f"| {arm} | {' | '.join(cells)} | {'–' if p is None else f'{p:.3f}'} |")
    lines += [
        "",
        "| arm | runs | replays | groups that teach | steps to 80% | seconds a step |",
        "|---|---|---|---|---|---|",
    ]
    for arm, row in figures["arms"].items():
        cells = [
            arm,
            str(len(row["success_by_seed"])),
            f"{row['replays']:.0f}",
            f"{100 * row['informative_share']:.0f}%",
        ]
        lines.append(f"| {' | '.join(cells)} | {row['steps_to_goal']['mean']:.0f} | {row['step_s']:.0f} |")
    lines.append(f"\n{len(figures['runs'])} runs, {'all' if figures['complete'] else 'not all'} that are planned")
    return "\n".join(lines)


def plot(figures: Mapping[str, Any], path: Path) -> None:
    """Draw each arm's difference from GRPO by class of tasks, with 95% intervals over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    arms = [arm for arm in figures["arms"] if arm != "grpo"]
    chart, panels = plt.subplots(1, len(figures["summary"]), figsize=(12, 3), sharey=True)
    for panel, (name, part) in zip(panels, figures["summary"].items(), strict=True):
        for place, arm in enumerate(arms):
            value = part.get(f"{arm}_minus_grpo_points")
            if value is not None and value["low"] is not None:
                panel.plot(list(value["by_seed"].values()), [place] * len(value["by_seed"]), ".", color="C0", alpha=0.4)
                half = value["high"] - value["mean"]
                panel.errorbar(value["mean"], place, xerr=half, fmt="D", color="C0", capsize=4, markersize=5)
        panel.axvline(0, color="gray", linestyle="--", linewidth=1)
        panel.set(title=TITLES[name], xlabel="points above GRPO")
        panel.grid(alpha=0.3)
    panels[0].set(yticks=range(len(arms)), yticklabels=arms)
    panels[0].invert_yaxis()
    chart.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
