"""What the off-policy correction of replays does: spread of the weights, gradient norm, success.

    python benchmarks/off_policy.py [--smoke] [--json PATH] [--steps N] [--older-steps N] [--groups-of N] [--work DIR]

One run of the stock trainer on embedded desktops fills a store, from a half-learnt policy. From its checkpoint, so with
the same weights, the same optimizer and the same store of older policies' successes, a run goes on without replay and
one with each `replay.correction`, one process after the other. A dozen steps of a small policy show whether a
correction changes variance; they are far too few, and one seed is, to rank corrections by what is learnt: read the
success columns so. A run that is whole in `--work` is read, not repeated.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from figures import write
from trainer_run import GROUPS, Workplace, read_steps, trainer_arguments

VARIANTS = {
    "off": "replay.enable=false",
    "none": "replay.correction=none",
    "truncated": "replay.correction=truncated",
}
MEANS = {
    "injected_per_step": "replay/injected",
    "ratio_mean": "replay/ratio_mean",
    "ratio_std": "replay/ratio_std",
    "ratio_beyond_bound": "replay/ratio_beyond_bound",
    "weight_mean": "replay/weight_mean",
    "weight_std": "replay/weight_std",
    "weight_ess": "replay/weight_ess",
    "grad_norm_mean": "actor/grad_norm",
    "entropy_mean": "actor/entropy",
}


def summarize(steps: Sequence[Mapping[str, Any]], num_rows: int) -> dict[str, float]:
    """Means over the steps of so many rows, spread of the gradient norm between them, and success at both ends."""
    values = {name: [step[metric] for step in steps if metric in step] for name, metric in MEANS.items()}
    figures = {name: statistics.fmean(column) for name, column in values.items() if column}
    aged = [step for step in steps if step.get("replay/injected")]
    if aged:
        figures["replay_age_steps"] = statistics.fmean(replay_age(step, num_rows) for step in aged)
    figures["grad_norm_std"] = statistics.pstdev(step["actor/grad_norm"] for step in steps)
    figures["ratio_max"] = max((step["replay/ratio_max"] for step in steps if "replay/ratio_max" in step), default=0.0)
    third = max(1, len(steps) // 3)
    figures["success_first_third"] = statistics.fmean(step["rollout/success_mean"] for step in steps[:third])
    figures["success_last_third"] = statistics.fmean(step["rollout/success_mean"] for step in steps[-third:])
    return figures


def replay_age(step: Mapping[str, Any], num_rows: int) -> float:
    """Updates between the policy that wrote a replay and the one that is trained, on the mean; rollouts have none."""
    return step["training/off_policy/trajectory_staleness/mean"] * num_rows / step["replay/injected"]


def train(place: Workplace, name: str, steps: int, *options: str) -> Sequence[Mapping[str, Any]]:
    """The metrics of a run to the end of step `steps`, one mapping a step; of one that is there, if it is whole."""
    run_dir = place.folder / name
    if steps not in read_steps(run_dir):
        place.start(name, steps, *options).wait()
    return [data for _, data in sorted(read_steps(run_dir).items())]


def main() -> None:
    parser = trainer_arguments(__doc__, "two steps each, in groups of two")
    parser.add_size("--steps", 12, 2, "training steps of each variant")
    parser.add_size("--older-steps", 6, 2, "of the run that they go on from")
    parser.add_size("--groups-of", 4, 2, "rollouts a group")
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="constant")
    arguments = parser.parse()
    steps, older, group_size = arguments.steps, arguments.older_steps, arguments.groups_of
    place = Workplace.make(arguments.work)
    options = [f"actor_rollout_ref.rollout.n={group_size}", "replay.capacity_per_task=64"]
    options += [f"actor_rollout_ref.actor.optim.lr={arguments.learning_rate}"]
    options += ["actor_rollout_ref.actor.optim.lr_scheduler_type=constant"]
    train(place, "older", older, *options, f"trainer.save_freq={older}")
    checkpoint = place.folder / "older" / "checkpoints" / f"global_step_{older}"
    options += ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}", "trainer.save_freq=-1"]
    figures: dict[str, Any] = {"steps": steps, "older_steps": older, "group_size": group_size, "seeds": 1}
    figures["learning_rate"] = arguments.learning_rate
    for name, option in VARIANTS.items():
        figures[name] = summarize(train(place, name, older + steps, *options, option), GROUPS * group_size)
    rows = list(dict.fromkeys(row for name in VARIANTS for row in figures[name]))
    print(f"{'':22}" + "".join(f"{name:>12}" for name in VARIANTS))
    for row in rows:
        print(f"{row:22}" + "".join(f"{figures[name].get(row, float('nan')):12.4f}" for name in VARIANTS))
    write(figures, arguments.json)


if __name__ == "__main__":
    main()
