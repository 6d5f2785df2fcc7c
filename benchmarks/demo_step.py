"""What a step of `make demo` and its start take, of this tree and of another, in turns.

    python benchmarks/demo_step.py [--smoke] [--json PATH] [--before REF | --cold] [--turns N] [--steps N]
        [--policy FOLDER]

Each turn is the stock trainer with `recipes/demo.yaml`, without validation and checkpoints, once from a worktree of
`REF`, made and removed here, and once from this tree; which is first alternates. CPU seconds are those of all processes
of a run, desktops' programs included, and hardly depend on other load; wall seconds do. A control group counts them, so
as root. A step is the mean of all but the first; a start is what came before the first one's end, less a step. The
ratios are of this tree to the other, the median over turns, and below 1 where it is faster. With `--cold` the other
runs are of this tree too, without its warm workers. The policy is the shipped one, in `--policy`.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cpu_group import CpuGroup
from figures import Arguments, machine, report
from trainer_run import ROOT, TrainerRun, await_end, read_steps

from arpo_verl.policy.shipped import write_shipped

BEFORE = "c58d360"
"""Before each episode had a sandbox of its own."""
WHAT = ("step_cpu_s", "step_wall_s", "start_cpu_s", "start_wall_s")


@contextlib.contextmanager
def worktree(ref: str, folder: Path) -> Iterator[Path]:
    """A checkout of `ref`, for as long as the block."""
    place = folder / "before"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(place), ref], cwd=ROOT, check=True)
    try:
        yield place
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=True)


def measure(tree: Path, run_dir: Path, policy: Path, steps: int, *options: str) -> dict[str, float]:
    """One run of `tree`, with these options too: `WHAT`."""
    fixed = [f"actor_rollout_ref.model.path={policy}", f"trainer.total_training_steps={steps}", "data.seed=1"]
    fixed += ["trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"]
    # Of both trees alike, so that their episodes are as long.
    fixed += ["actor_rollout_ref.rollout.top_p=1.0"]
    group, begin = CpuGroup(), time.monotonic()
    ends: list[tuple[float, float]] = []
    paths = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
    run = TrainerRun(run_dir, *fixed, *options, env=paths, recipe=tree / "recipes" / "demo.yaml", cwd=tree, group=group)
    try:
        for step in range(1, steps + 1):
            run.wait_for(lambda step=step: len(read_steps(run_dir)) >= step)  # type: ignore[misc]
            ends.append((group.seconds(), time.monotonic() - begin))
        processes = run.processes()
        run.wait()
        await_end(processes)
    finally:
        group.close()
    (first_cpu, first_wall), (last_cpu, last_wall) = ends[0], ends[-1]
    cpu, wall = (last_cpu - first_cpu) / (steps - 1), (last_wall - first_wall) / (steps - 1)
    return dict(zip(WHAT, (cpu, wall, first_cpu - cpu, first_wall - wall), strict=True))


def main() -> None:
    parser = Arguments(__doc__, smoke="one turn of two steps")
    parser.add_argument("--before", default=BEFORE, metavar="REF", help=f"commit to compare with; {BEFORE} by default")
    parser.add_argument("--cold", action="store_true", help="compare with runs without warm workers instead")
    parser.add_argument("--policy", type=Path, default=ROOT / ".cache" / "seeing", help="its folder")
    parser.add_size("--turns", 3, 1, "pairs of runs")
    parser.add_size("--steps", 4, 2, "steps of a run, at least two")
    arguments = parser.parse()
    sizes = {"turns": arguments.turns, "steps": arguments.steps}
    figures: dict[str, object] = {**machine(), "before": "cold" if arguments.cold else arguments.before, **sizes}
    policy = arguments.policy.absolute()
    if not policy.exists():
        write_shipped("seeing", policy)
    measured: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    options = {"before": ["~hydra.callbacks.warm_workers"] if arguments.cold else [], "now": []}
    with tempfile.TemporaryDirectory(prefix="demo-step-") as name, contextlib.ExitStack() as stack:
        other = ROOT if arguments.cold else stack.enter_context(worktree(arguments.before, Path(name)))
        trees = {"before": other, "now": ROOT}
        for turn in range(arguments.turns):
            for which in sorted(trees, reverse=bool(turn % 2)):
                found = measure(trees[which], Path(name, f"{which}-{turn}"), policy, arguments.steps, *options[which])
                print(which, found, file=sys.stderr)
                measured[which].append(found)
    for key in WHAT:
        pairs = list(zip(measured["before"], measured["now"], strict=True))
        figures[f"{key}_before"] = statistics.median(before[key] for before, _ in pairs)
        figures[f"{key}_now"] = statistics.median(now[key] for _, now in pairs)
        figures[f"{key.removesuffix('_s')}_ratio"] = statistics.median(now[key] / before[key] for before, now in pairs)
    report({**figures, "load_after": os.getloadavg()[0]}, arguments.json)


if __name__ == "__main__":
    main()
