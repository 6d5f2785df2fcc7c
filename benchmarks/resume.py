"""Does it teach more to go on from within a success than to be shown it? One demonstration a task, over seeds.

    python benchmarks/resume.py [--smoke] [--json PATH] [--work DIR] [--methods M ...] [--seeds N]

Trains the policy that sees on the longest generated tasks, five presses in a row and then `finished()`, which it hardly
ever solves. The replay store begins with the expert's success at each: `arpo` injects it where a group failed, `resume`
lets rollouts begin within it, `grpo` has no use for it. Runs are those of `learning.py` in all else, and so is how the
study goes on where it was stopped. Compared are the last checkpoints: while training, few of the rollouts of `resume`
begin at the beginning. See docs/resume.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock
from learning import judged_cells, judged_success, run_study, settings, ship_policy, write_tasks
from learning_runs import BASE, FamilyStudy, Result
from policies.demonstrations import collect_demonstrations, save_demonstrations
from trainer_run import trainer_arguments

from arpo_verl.cli.main import main as arpo_verl
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.replay.store.persistence import read_manifest
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.families import SCREEN, generate, replies_of

METHODS = ("grpo", "arpo", "resume")
TASKS, HELD_OUT = 16, 8


@dataclass(frozen=True)
class LongStudy(FamilyStudy):
    """Runs on the longest tasks, judged on others of their family too."""

    seeds: Path
    """A replay store with one success of each training task."""
    max_steps: int = 8
    """Of an episode; the solution takes six."""
    judged_on = {"training_tasks": ("long",), "held_out": ("held_out_long",)}

    def overrides(self, method: str, seed: int) -> list[str]:
        return [
            *super().overrides(method, seed),
            f"gui_agent.max_steps={self.max_steps}",
            *([f"replay.seed_from={self.seeds}"] if method != "grpo" else []),
            *(["replay.mode=resume"] if method == "resume" else []),
        ]


def main() -> None:
    arguments = _arguments()
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="resume-"))).absolute()
    study = prepare(work, arguments.smoke, arguments.environment_steps)
    runs = [(method, seed) for seed in range(1, arguments.seeds + 1) for method in arguments.methods]
    results = run_study(study, work, runs, arguments.json, partial(summarize, study))
    print(table(summarize(study, results)))


def _arguments() -> argparse.Namespace:
    parser = trainer_arguments(__doc__, "four tasks, few steps")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="by default all")
    parser.add_size("--seeds", 3, 1, "runs of each method")
    parser.add_size("--environment-steps", 1500, 100, "of each run")
    return parser.parse()


def prepare(work: Path, smoke: bool, environment_steps: int) -> LongStudy:
    """The tasks, a demonstration of each that is trained on, and the shipped policy that sees, from which all start."""
    folders = {split: work / split for split in ("long", "held_out_long")}
    work.mkdir(parents=True, exist_ok=True)
    with FileLock(work / "prepared.lock"):
        for (split, folder), count in zip(folders.items(), (4, 2) if smoke else (TASKS, HELD_OUT), strict=True):
            write_tasks(folder, (generate(split, number) for number in range(count)))
        study = LongStudy(
            policy=ship_policy(work),
            tasks=folders["long"],
            held_out=folders["held_out_long"],
            environment_steps=environment_steps,
            group_size=2,
            groups_per_task=1,
            learning_rate=2e-4,
            save_every=1,
            top_p=0.9,
            seeds=work / "seeds",
        )
        _demonstrate(study, work / "demonstrations")
    return study


def _demonstrate(study: LongStudy, demonstrations: Path) -> None:
    """Make the store of the expert's successes, where it is not there yet, as `arpo-verl replay seed` does."""
    tasks = load_tasks(str(study.tasks))
    if not demonstrations.is_dir():
        desktops = EnvironmentConfig(screen_size=SCREEN, num_desktops=2)
        found = collect_demonstrations(tasks, replies_of, desktops, lambda screen: screen, repeats=1)
        save_demonstrations(demonstrations, found)
    if not study.seeds.is_dir():
        command = ["replay", "seed", str(demonstrations), "--recipe", str(study.recipe), "--out", str(study.seeds)]
        for option in (f"actor_rollout_ref.model.path={study.policy}", f"gui_agent.max_steps={study.max_steps}"):
            command += ["--set", option]
        arpo_verl(command)
    if (count := len(read_manifest(study.seeds).serials)) != len(tasks):
        raise SystemExit(f"{study.seeds} must hold a success of each of {len(tasks)} tasks, got {count}; remove it")


# --- Figures -------------------------------------------------------------------------------------------------------


def summarize(study: LongStudy, results: Iterable[Result]) -> dict[str, Any]:
    """Everything that is reported, in plain values; shares in [0, 1], differences in points of percent."""
    results = list(results)
    return {
        "settings": settings(study),
        "summary": judged_success(study, results),
        "runs": [asdict(result) for result in results],
    }


def table(figures: Mapping[str, Any]) -> str:
    """The figures as Markdown tables."""
    summary = figures["summary"]
    lines = ["| method | training tasks, at 1.0 | at 0.6 | held-out, at 1.0 | at 0.6 |", "|---|---|---|---|---|"]
    known = summary["training_tasks"]
    lines += [f"| {m} | {' | '.join(judged_cells(summary, m))} |" for m in (BASE, *METHODS) if m in known]
    lines += ["", "| difference in points, paired by seed | mean (95% interval) | by seed |", "|---|---|---|"]
    for tasks, found in summary.items():
        for temperature, values in found["by_temperature"].items():
            for name, value in values.items():
                if name.endswith("_points") and value["by_seed"]:
                    seeds = ", ".join(f"{points:+.1f}" for points in value["by_seed"].values())
                    mean = f"{value['mean']:+.1f}"
                    if value["low"] is not None:
                        mean += f" ({value['low']:+.1f} to {value['high']:+.1f})"
                    lines.append(f"| {name.removesuffix('_points')}, {tasks}, at {temperature} | {mean} | {seeds} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
