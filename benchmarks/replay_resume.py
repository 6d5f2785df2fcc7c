"""Kills the stock trainer with `kill -9` at random moments, and looks at what is left of it and of the replay store.

    python benchmarks/replay_resume.py [--smoke] [--json PATH] [--mode MODE] [--kills N] [--seed N] [--work DIR]

One run on embedded desktops that saves at every step. It is started, killed, and started again, as often as asked: in
turns at a random moment of a step, and within 80 ms after a checkpoint began to be written, which takes 60. After each
kill: is the store of every checkpoint whole? Is each the one before it with the successes of its step? Did every step,
the first after a kill like those that nobody disturbed, inject what its store and its number ask for? And when are
Ray's processes and the desktops gone, which nobody told?
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from figures import show, write
from trainer_run import GROUPS, TrainerRun, Workplace, await_end, trainer_arguments

from arpo_verl.errors import ReplayError
from arpo_verl.records.metrics import read_metrics
from arpo_verl.replay.choice import Group, Outcome, choose_replays
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.persistence import load_store
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.types import EpisodeId

_BEGINS = re.compile(r"the replay store begins with (\d+) successes of \d+ tasks, from \S*global_step_(\d+)/replay")
SAVE_S = 0.08
"""What a checkpoint of this small policy takes, and a little more."""


@dataclass(frozen=True)
class Mode:
    """One of veRL's trainer modes, as this machine can run it."""

    options: tuple[str, ...]
    batches_per_step: int = 1


MODES = {
    "sync": Mode(()),
    "colocate_async": Mode(("trainer.v1.trainer_mode=colocate_async",)),
    "separate_async": Mode(
        (
            "trainer.v1.trainer_mode=separate_async",
            "trainer.v1.separate_async.parameter_sync_step=2",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={GROUPS // 2}",
            "actor_rollout_ref.rollout.nnodes=1",
            "actor_rollout_ref.rollout.n_gpus_per_node=1",
            "actor_rollout_ref.rollout.checkpoint_engine.backend=ray",
            "ray_kwargs.ray_init.num_gpus=2",
        ),
        batches_per_step=2,
    ),
}


@dataclass
class Start:
    """One start of the trainer: what it began with, and what came of it."""

    resumed_step: int
    store_step: int
    """Of the newest store there was; 0 for none."""
    killed: str = ""
    delay_s: float = 0.0
    latest_step: int = 0
    stores: dict[int, int] = field(default_factory=dict)
    """Successes in the store of each checkpoint."""
    torn: list[str] = field(default_factory=list)
    not_continued: list[int] = field(default_factory=list)
    """Steps whose store is not the one before with the step's successes."""
    replays: dict[int, int] = field(default_factory=dict)
    """Injected in the first batch of each step."""
    other_replays: list[int] = field(default_factory=list)
    """Steps in which others were injected than the store asks for."""
    processes: int = 0
    left_after_120_s: int = 0
    gone_after_s: float = 0.0


def latest_step(run_dir: Path) -> int:
    """The step that the trainer would resume from; 0 before the first checkpoint."""
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    return int(tracker.read_text() or 0) if tracker.is_file() else 0


def read_stores(run_dir: Path) -> tuple[dict[int, SuccessStore], list[str]]:
    """The store of each checkpoint, by step, and what is wrong with any."""
    stores, torn = {}, []
    for folder in (run_dir / "checkpoints").glob("global_step_*/replay"):
        if not (folder / "store.json").is_file():
            continue  # killed in the first save: no store was promised
        try:
            stores[int(folder.parent.name.rsplit("_", 1)[1])] = load_store(folder, fingerprint=None)
        except ReplayError as error:
            torn.append(str(error))
    return dict(sorted(stores.items())), torn


def continues(before: SuccessStore, after: SuccessStore, step: int) -> bool:
    """Whether `after` is `before` with what came since step `step`, less the oldest of a task that had too many."""
    for task_id in {trajectory.task_id for trajectory in before.trajectories()}:
        kept = [trajectory for trajectory in after.of_task(task_id) if trajectory.step <= step]
        earlier = list(before.of_task(task_id))
        if not after.of_task(task_id) or kept != earlier[len(earlier) - len(kept) :]:
            return False
    return True


def read_replays(trajectory_dir: Path, step: int, groups: int) -> Mapping[str, set[EpisodeId]]:
    """The episodes that were replayed into the first groups of a step, by task."""
    replayed = defaultdict(set)
    path = trajectory_dir / f"step_{step:06d}" / "groups.jsonl"
    for line in path.read_text().splitlines()[:groups] if path.is_file() else ():
        group = json.loads(line)
        replayed[group["task_id"]] |= {EpisodeId(**row["replay"]) for row in group["rows"] if row["replay"]}
    return replayed


def replays_asked_for(store: SuccessStore, task_id: str, number: int, step: int) -> set[EpisodeId | None]:
    """The first replays for groups of the task that failed in this step."""
    groups = [
        Group(task_id, tuple(Outcome(f"{uid}_{i}_0", task_id, 0.0, 0.0, False, "finished", 1) for i in range(2)))
        for uid in range(number)
    ]
    plan = choose_replays(groups, store, ReplayConfig(), step)
    return {store.trajectory(replacement.candidate.serial).episode for replacement in plan}


def kill(run: TrainerRun, is_time: Callable[[], bool], start: Start) -> None:
    """Kill the run `start.delay_s` after it is time, and wait until nothing of it is left."""
    processes, listed_s = run.processes(), time.perf_counter()
    while not is_time():
        if run.has_ended():
            raise RuntimeError(f"the trainer ended before it could be killed:\n{run.last_words()}")
        # Not at the last moment: a list of so many processes takes as long as a checkpoint.
        if time.perf_counter() - listed_s > 2:
            processes, listed_s = run.processes(), time.perf_counter()
        time.sleep(0.002)
    time.sleep(start.delay_s)
    run.kill()
    killed_s = time.perf_counter()
    alive = await_end(processes, timeout_s=120)
    start.processes, start.left_after_120_s = len(processes), len(alive)
    start.gone_after_s = time.perf_counter() - killed_s


def examine(run_dir: Path, trajectory_dir: Path, mode: Mode, start: Start, begun_with: SuccessStore | None) -> None:
    """Compare the stores and the replays of a start that has ended with what they should be."""
    stores, start.torn = read_stores(run_dir)
    start.latest_step = latest_step(run_dir)
    start.stores = {step: len(store) for step, store in stores.items()}
    start.not_continued = [
        later for earlier, later in pairwise(stores) if not continues(stores[earlier], stores[later], earlier)
    ]
    for step in range(start.resumed_step + 1, start.latest_step + 2):
        store = begun_with if step == start.resumed_step + 1 else stores.get(step - 1)
        replayed = read_replays(trajectory_dir, step, GROUPS // mode.batches_per_step)
        if store is None or not replayed:
            continue
        start.replays[step] = sum(map(len, replayed.values()))
        asked = {task_id: replays_asked_for(store, task_id, len(ids), step) for task_id, ids in replayed.items()}
        if asked != replayed:
            start.other_replays.append(step)


def run_once(place: Workplace, name: str, mode: Mode, number: int, rng: random.Random | None, within_s: float) -> Start:
    """Start the trainer, kill it at a moment that `rng` draws or, without one, let it make one step more."""
    run_dir = place.folder / name
    stores, _ = read_stores(run_dir)
    start = Start(latest_step(run_dir), max(stores, default=0))
    trajectory_dir = run_dir / "trajectories" / f"start-{number}"
    options = [f"gui_agent.trajectory_dir={trajectory_dir}", "actor_rollout_ref.rollout.n=2"]
    options += ["trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=null", *mode.options]
    run = place.start(name, start.resumed_step + 1 if rng is None else 1000, *options)
    if rng is None:
        run.wait()
    elif number % 2:
        start.killed, start.delay_s = "while saving", rng.uniform(0, SAVE_S)
        checkpoint, began = run_dir / "checkpoints" / f"global_step_{start.resumed_step + 1}", time.time()
        kill(run, lambda: any(path.stat().st_mtime > began for path in checkpoint.rglob("*")), start)
    else:
        start.killed, start.delay_s = "in a step", rng.uniform(0, within_s)
        kill(run, lambda: latest_step(run_dir) > start.resumed_step, start)
    examine(run_dir, trajectory_dir, mode, start, stores.get(start.store_step))
    return start


def main() -> None:
    parser = trainer_arguments(__doc__, "one kill")
    parser.add_argument("--mode", choices=MODES, default="sync", help="trainer.v1.trainer_mode")
    parser.add_size("--kills", 5, 1, "how often")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--within-s", type=float, default=15.0, help="latest moment in a step, after its begin")
    arguments = parser.parse()
    place, rng, starts = Workplace.make(arguments.work), random.Random(arguments.seed), []
    for number in range(arguments.kills + 1):
        rng_or_end = rng if number < arguments.kills else None
        starts.append(run_once(place, arguments.mode, MODES[arguments.mode], number, rng_or_end, arguments.within_s))
        print(json.dumps(asdict(starts[-1])), flush=True)
    figures = {"mode": arguments.mode, "kills": arguments.kills, **summarize(place.folder / arguments.mode, starts)}
    show(figures)
    write({**figures, "starts": [asdict(start) for start in starts]}, arguments.json)


def summarize(run_dir: Path, starts: list[Start]) -> dict[str, Any]:
    """What all starts come to."""
    output = (run_dir / "output.log").read_text(errors="replace")
    begun = [(int(step), int(size)) for size, step in _BEGINS.findall(output)]
    expected = [(b.store_step, a.stores[b.store_step]) for a, b in pairwise(starts) if b.store_step]
    after_kills = sum(start.replays.get(start.resumed_step + 1, 0) for start in starts[1:])
    metrics = [data for path in run_dir.glob("metrics*.jsonl") for _, data in read_metrics(path)]
    own = [data["replay/without/training/rollout_probs_diff_max"] for data in metrics if data.get("replay/injected")]
    return {
        "torn_stores": sum(len(start.torn) for start in starts),
        "stores_not_continued": len({step for start in starts for step in start.not_continued}),
        "starts_with_the_saved_store": f"{sum(b == e for b, e in zip(begun, expected, strict=False))}/{len(expected)}",
        "steps_lost_at_most": max(start.resumed_step - start.store_step for start in starts),
        "replays_in_steps_after_a_kill": after_kills,
        "replays_in_other_steps": sum(sum(start.replays.values()) for start in starts) - after_kills,
        "steps_with_other_replays": sum(len(start.other_replays) for start in starts),
        "probs_diff_max_without_replays": max(own, default=float("nan")),
        "processes_left_after_120_s": sum(start.left_after_120_s for start in starts),
        "gone_after_s_max": max(start.gone_after_s for start in starts),
    }


if __name__ == "__main__":
    main()
