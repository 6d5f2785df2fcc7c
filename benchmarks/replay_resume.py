"""Kills the stock trainer with `kill -9` at random moments, and looks at what is left of it and of the replay store.

    python benchmarks/replay_resume.py [--smoke] [--json PATH] [--kills N] [--seed N] [--work DIR]

One run on embedded desktops that saves at every step. It is started, killed at a random moment after the next
checkpoint, and started again, as often as asked. After each kill: is the store of every checkpoint whole, does the next
start begin with the store of the step that it resumes, and when are Ray's processes and the desktops gone, which nobody
told?
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from trainer_run import TrainerRun, make_policy

from arpo_verl.errors import ReplayError
from arpo_verl.replay.persistence import load_store

_BEGINS = re.compile(r"the replay store begins with (\d+) successes of \d+ tasks, from \S*global_step_(\d+)/replay")


def latest_step(run_dir: Path) -> int:
    """The step that the trainer would resume from; 0 before the first checkpoint."""
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    return int(tracker.read_text() or 0) if tracker.is_file() else 0


def check_stores(run_dir: Path) -> tuple[dict[int, int], list[str]]:
    """Successes in the store of each checkpoint, and what is wrong with any."""
    sizes, torn = {}, []
    for folder in (run_dir / "checkpoints").glob("global_step_*/replay"):
        if not (folder / "store.json").is_file():
            continue  # killed in the first save: no store was promised
        try:
            sizes[int(folder.parent.name.rsplit("_", 1)[1])] = len(load_store(folder, fingerprint=None))
        except ReplayError as error:
            torn.append(str(error))
    return sizes, torn


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs: one that ended, and that nobody has asked for its exit code, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_once(run: TrainerRun, after_step: int, delay_s: float) -> dict[str, Any]:
    """Kill the run `delay_s` after its next checkpoint, and wait until nothing of it is left."""
    while latest_step(run.run_dir) <= after_step:
        if run.process.poll() is not None:
            raise RuntimeError(f"the trainer ended before it could be killed:\n{run.output()[-4000:]}")
        time.sleep(0.02)
    time.sleep(delay_s)
    processes = run.kill()
    start_s = time.perf_counter()
    while (alive := [process for process in processes if is_alive(process)]) and time.perf_counter() - start_s < 120:
        time.sleep(0.05)
    sizes, torn = check_stores(run.run_dir)
    return {
        "delay_s": delay_s,
        "latest_step": latest_step(run.run_dir),
        "processes": len(processes),
        "left_after_120_s": len(alive),
        "gone_after_s": time.perf_counter() - start_s,
        "stores": sizes,
        "torn": torn,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one kill: does it run at all")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--kills", type=int, help="5 by default, 1 with --smoke")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--max-delay-s", type=float, default=15.0, help="latest moment after a checkpoint")
    parser.add_argument("--work", type=Path, help="folder to work in and keep; the policy there is used again")
    arguments = parser.parse_args()
    kills = arguments.kills or (1 if arguments.smoke else 5)
    work = arguments.work or Path(tempfile.mkdtemp(prefix="replay-resume-"))
    tasks, policy = make_policy(work, target_success=0.25)
    run_dir, rng, rounds = work / "run", random.Random(arguments.seed), []
    options = ["actor_rollout_ref.rollout.n=2", "trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=null"]
    while True:
        step = latest_step(run_dir)
        is_last = len(rounds) == kills
        run = TrainerRun(run_dir, tasks, policy, step + 1 if is_last else 1000, *options)
        if is_last:
            run.wait()
            break
        rounds.append(kill_once(run, step, rng.uniform(0, arguments.max_delay_s)))
        print(json.dumps(rounds[-1]), flush=True)
    begun = [(int(step), int(size)) for size, step in _BEGINS.findall(run.output())]
    # Each start after a kill: the store of the newest checkpoint that has one, as large as it was saved.
    expected = [(max(r["stores"]), r["stores"][max(r["stores"])]) for r in rounds if r["stores"]]
    figures: dict[str, Any] = {
        "kills": kills,
        "torn_stores": sum(len(r["torn"]) for r in rounds),
        "starts_with_the_saved_store": f"{sum(b == e for b, e in zip(begun, expected, strict=False))}/{len(expected)}",
        "steps_lost_at_most": max((r["latest_step"] - max(r["stores"], default=0) for r in rounds), default=0),
        "processes_left_after_120_s": sum(r["left_after_120_s"] for r in rounds),
        "gone_after_s_max": max(r["gone_after_s"] for r in rounds),
    }
    for name, value in figures.items():
        print(f"{name:30} {value:.2f}" if isinstance(value, float) else f"{name:30} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps({**figures, "rounds": rounds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
