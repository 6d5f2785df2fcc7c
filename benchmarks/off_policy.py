"""What the off-policy correction of replays does: spread of the weights, gradient norm, success.

    python benchmarks/off_policy.py [--smoke] [--json PATH] [--steps N] [--groups-of N] [--work DIR]

Runs the stock trainer on embedded desktops once for each `replay.correction`, one process after the other, all from the
same half-learnt policy and the same seed. A dozen steps of a small policy show whether a correction changes variance;
they are far too few, and one seed is, to rank corrections by what is learnt: read the success column so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_run import TrainerRun, make_policy

CORRECTIONS = ("none", "truncated", "clip")
# From step 2 on: before, nothing is stored.
MEANS = {
    "injected_per_step": "replay/injected",
    "ratio_mean": "replay/ratio_mean",
    "ratio_std": "replay/ratio_std",
    "ratio_beyond_bound": "replay/ratio_beyond_bound",
    "weight_mean": "replay/weight_mean",
    "weight_std": "replay/weight_std",
    "weight_ess": "replay/weight_ess",
    "grad_norm_mean": "actor/grad_norm",
}


def summarize(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over the steps that could replay, and success at both ends."""
    later = steps[1:]
    values = {name: [step[metric] for step in later if metric in step] for name, metric in MEANS.items()}
    figures = {name: statistics.fmean(column) for name, column in values.items() if column}
    norms = [step["actor/grad_norm"] for step in later]
    figures["grad_norm_std"] = statistics.pstdev(norms)
    figures["ratio_max"] = max((step["replay/ratio_max"] for step in later if "replay/ratio_max" in step), default=0.0)
    third = max(1, len(steps) // 3)
    figures["success_first_third"] = statistics.fmean(step["rollout/success_mean"] for step in steps[:third])
    figures["success_last_third"] = statistics.fmean(step["rollout/success_mean"] for step in steps[-third:])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="two steps in groups of two: does it run at all")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--steps", type=int, help="training steps of each run; 12 by default, 2 with --smoke")
    parser.add_argument("--groups-of", type=int, help="rollouts a group; 4 by default, 2 with --smoke")
    parser.add_argument("--work", type=Path, help="folder to work in and keep; the policy there is used again")
    arguments = parser.parse_args()
    steps = arguments.steps or (2 if arguments.smoke else 12)
    group_size = arguments.groups_of or (2 if arguments.smoke else 4)
    work = arguments.work or Path(tempfile.mkdtemp(prefix="off-policy-"))
    tasks, policy = make_policy(work, target_success=0.25)
    figures: dict[str, Any] = {"steps": steps, "group_size": group_size, "seeds": 1}
    for correction in CORRECTIONS:
        options = [f"replay.correction={correction}", f"actor_rollout_ref.rollout.n={group_size}"]
        run = TrainerRun(work / correction, tasks, policy, steps, *options, "trainer.resume_mode=disable")
        run.wait()
        figures[correction] = summarize([data for _, data in sorted(run.metrics().items())])
    names = list(dict.fromkeys(name for correction in CORRECTIONS for name in figures[correction]))
    print(f"{'':22}" + "".join(f"{correction:>12}" for correction in CORRECTIONS))
    for name in names:
        print(f"{name:22}" + "".join(f"{figures[c].get(name, float('nan')):12.4f}" for c in CORRECTIONS))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
