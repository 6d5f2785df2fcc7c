"""Does frontier sampling pay? Against veRL's own order of tasks, at equal environment steps, over seeds.

    python benchmarks/frontier.py [--smoke] [--json PATH] [--work DIR] [--seeds N] [--format-weight W]

Trains a small policy on the whole embedded suite with the stock trainer, once for each sampling and seed, until each
run's agents took the same number of steps on desktops. The warm start has imitated every third task of the suite and
seen no other, so that most tasks always fail: of OSWorld's 369 tasks the paper's policy solved 128 in 16 tries. After a
run its last checkpoint plays all tasks. The reward is the verdict alone: a third of this policy's replies to tasks that
it has never seen are malformed, and with the format reward a malformed reply would make a group informative that has no
success. Runs are those of `learning.py` in all else. See docs/frontier.md.

The study goes on where it was stopped when it is given its `--work` again; a finished run is read, not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from figures import write
from learning import difference, interval
from learning_runs import Curve, PartialStudy, last_checkpoint, play_all, train
from trainer_run import copy_tasks, make_policy, trainer_arguments

from arpo_verl.tasks.loader import EMBEDDED_DIR

SAMPLINGS = ("uniform", "frontier")
TASKS = tuple(sorted(path.stem for path in EMBEDDED_DIR.glob("*.json")))
KNOWN = TASKS[::3]
"""What the warm start has imitated: 34% of the tasks, chosen by nothing but the alphabet."""
SMOKE_TASKS = ("dialog-confirm-no", "dialog-confirm-yes", "dialog-follow-right", "password-log-in")
SMOKE_KNOWN = SMOKE_TASKS[:2]
BASE_ROLLOUTS = 6
"""Of each task, by the warm start."""


@dataclass(frozen=True)
class FrontierStudy(PartialStudy):
    """Runs that differ in which task comes next."""

    known: tuple[str, ...]
    format_weight: float

    def overrides(self, method: str, seed: int) -> list[str]:
        return [
            *super().overrides(method, seed),
            f"data.tasks.sampling={method}",
            f"+reward.custom_reward_function.reward_kwargs.format_weight={self.format_weight}",
        ]


def main() -> None:
    arguments = _arguments()
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="frontier-"))).absolute()
    study = prepare(work, arguments.smoke, arguments.environment_steps, arguments.format_weight)
    base = validate(study, work / "base", None)
    curves, validations = [], []
    runs = [(method, seed) for seed in range(1, arguments.seeds + 1) for method in SAMPLINGS]
    for number, (method, seed) in enumerate(runs, start=1):
        curve = train(study, work, method, seed, f"{number}/{len(runs)} {method}, seed {seed}")
        curves.append(curve)
        validations.append(
            validate(study, work / f"{method}-{seed}-validated", last_checkpoint(work / f"{method}-{seed}"))
        )
        figures = summarize(study, base, curves, validations)  # of the runs so far: hours are not lost to the last one
        write(figures, arguments.json)
    print(table(figures))


def _arguments() -> argparse.Namespace:
    parser = trainer_arguments(__doc__, "four tasks, one seed, few steps")
    parser.add_size("--seeds", 3, 1, "runs of each sampling")
    parser.add_size("--environment-steps", 800, 40, "of each run")
    words = "of the format reward; 0 by default"
    parser.add_argument("--format-weight", type=float, default=0.0, metavar="W", help=words)
    return parser.parse()


def prepare(work: Path, smoke: bool, environment_steps: int, format_weight: float) -> FrontierStudy:
    """The tasks, and the policy that all runs start from, which knows some of them."""
    known = SMOKE_KNOWN if smoke else KNOWN
    tasks = copy_tasks(work / "tasks", SMOKE_TASKS if smoke else TASKS)
    options = ["--tasks", str(copy_tasks(work / "known", known))]
    return FrontierStudy(
        policy=make_policy(work / "policy", *options),
        tasks=tasks,
        environment_steps=environment_steps,
        group_size=4,
        groups_per_task=1,
        learning_rate=2e-4,
        save_every=1,
        groups=4 if smoke else 8,
        validation_rollouts=1 if smoke else 4,
        known=known,
        format_weight=format_weight,
    )


def validate(study: FrontierStudy, run_dir: Path, checkpoint: Path | None) -> dict[str, float]:
    """Play all tasks at temperature 0.6, by a run's checkpoint or by the warm start; what was played is only read.

    Returns:
        Success by task, in [0, 1].

    Raises:
        RuntimeError: the trainer failed.
    """
    often = [f"actor_rollout_ref.rollout.val_kwargs.n={BASE_ROLLOUTS}"] if checkpoint is None else []
    return play_all(run_dir, [*study.overrides("uniform", seed=1), *often], checkpoint)


# --- Figures -------------------------------------------------------------------------------------------------------


def summarize(
    study: FrontierStudy,
    base: Mapping[str, float],
    curves: Sequence[Curve],
    validations: Sequence[Mapping[str, float]],
) -> dict[str, Any]:
    """Everything that is reported, in plain values; shares in [0, 1], differences in points of percent."""
    methods: dict[str, Any] = {}
    success: dict[str, dict[int, float]] = {}
    informative: dict[str, dict[int, float]] = {}
    for method in SAMPLINGS:
        of_method = [(c, v) for c, v in zip(curves, validations, strict=True) if c.method == method]
        if of_method:
            success[method] = {c.seed: statistics.fmean(v.values()) for c, v in of_method}
            informative[method] = {c.seed: _informative(study, c) for c, _ in of_method}
            methods[method] = {
                "success": interval(list(success[method].values())),
                "success_by_seed": success[method],
                "success_known": interval([_mean(v, study.known) for _, v in of_method]),
                "success_others": interval([_mean(v, set(v) - set(study.known)) for _, v in of_method]),
                "informative_share": statistics.fmean(informative[method].values()),
                "informative_share_by_seed": informative[method],
                **{
                    name: statistics.fmean(values)
                    for name, values in {
                        "training_steps": [len(c.ended(study.environment_steps)) for c, _ in of_method],
                        "environment_steps": [c.points[-1].environment_steps for c, _ in of_method],
                        "episodes": [sum(p.episodes for p in c.points) for c, _ in of_method],
                        "replays": [c.replays for c, _ in of_method],
                        "wall_s": [c.wall_s for c, _ in of_method],
                    }.items()
                },
            }
    summary: dict[str, Any] = {
        "base": statistics.fmean(base.values()),
        "base_known": _mean(base, study.known),
        "base_tasks_never_solved": sum(value == 0 for value in base.values()),
        "wall_s": sum(curve.wall_s for curve in curves),
    }
    if len(methods) == len(SAMPLINGS):
        pairs = {seed: informative["uniform"][seed] for seed in informative["frontier"]}
        summary |= {
            "informative_share_ratio": methods["frontier"]["informative_share"] / statistics.fmean(pairs.values()),
            "informative_share_ratio_by_seed": {
                seed: informative["frontier"][seed] / share if share else None for seed, share in pairs.items()
            },
            "frontier_minus_uniform_points": difference(success["frontier"], success["uniform"]),
        }
    settings = {name: value for name, value in asdict(study).items() if not isinstance(value, Path)}
    return {
        "settings": settings,
        "summary": summary,
        "methods": methods,
        "base": dict(base),
        "curves": [asdict(curve) for curve in curves],
        "validations": [
            {"method": c.method, "seed": c.seed, "success": dict(v)} for c, v in zip(curves, validations, strict=True)
        ],
    }


def _informative(study: FrontierStudy, curve: Curve) -> float:
    """Share of groups, of those in whole training steps, whose rollouts have different rewards; no replay counts."""
    return statistics.fmean(point.informative for point in curve.ended(study.environment_steps))


def _mean(success: Mapping[str, float], task_ids: Sequence[str] | set[str]) -> float:
    return statistics.fmean(success[task_id] for task_id in task_ids)


def table(figures: Mapping[str, Any]) -> str:
    """The figures as a Markdown table."""
    summary = figures["summary"]
    lines = [
        "| sampling | seeds | groups that teach | success, all tasks | tasks imitated | others | replays "
        "| training steps | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| warm start | | | {summary['base']:.1%} | {summary['base_known']:.1%} | | | | |",
    ]
    for method, row in figures["methods"].items():
        cells = [method, str(len(row["success_by_seed"])), f"{row['informative_share']:.1%}"]
        cells += [_percent(row[name]) for name in ("success", "success_known", "success_others")]
        cells += [f"{row['replays']:.0f}", f"{row['training_steps']:.0f}", f"{row['wall_s'] / 60:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    if "informative_share_ratio" in summary:
        points = summary["frontier_minus_uniform_points"]
        lines.append(f"\ngroups that teach, frontier over uniform: {summary['informative_share_ratio']:.2f}")
        by_seed = ", ".join(f"{value:+.1f}" for value in points["by_seed"].values())
        lines.append(
            f"success, frontier minus uniform: {points['mean']:+.1f}{_bounds(points)} points, by seed {by_seed}"
        )
    return "\n".join(lines)


def _bounds(value: Mapping[str, float | None]) -> str:
    low, high = value["low"], value["high"]
    return "" if low is None or high is None else f" ({low:+.1f} to {high:+.1f})"


def _percent(value: Mapping[str, float | None]) -> str:
    mean, low, high = value["mean"], value["low"], value["high"]
    text = "–" if mean is None else f"{mean:.1%}"
    return text if low is None or high is None else f"{text} ({100 * low:.0f}–{100 * high:.0f})"


if __name__ == "__main__":
    main()
