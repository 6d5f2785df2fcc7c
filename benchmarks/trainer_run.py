"""Starts the stock trainer on embedded desktops, for the benchmarks beside this file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
# Tasks of one or two actions, which a short imitation learns about half-way: some groups fail, some are solved.
TASKS = ("dialog-confirm-yes", "dialog-confirm-no", "message-press-green", "radio-size-large")


def make_policy(folder: Path, target_success: float) -> tuple[Path, Path]:
    """A folder of tasks, and a policy that has half learnt them."""
    tasks, policy = folder / "tasks", folder / "policy"
    tasks.mkdir(parents=True, exist_ok=True)
    for task_id in TASKS:
        shutil.copy(ROOT / "arpo_verl/tasks/embedded" / f"{task_id}.json", tasks)
    if not (policy / "config.json").is_file():
        command = [sys.executable, "-m", "arpo_verl.policy", "--out", str(policy), "--tasks", str(tasks)]
        subprocess.run([*command, "--target-success", str(target_success)], check=True)
    return tasks, policy


class TrainerRun:
    """One start of the trainer in `run_dir`, in a session of its own: 16 groups a step, each task four times."""

    def __init__(self, run_dir: Path, tasks: Path, policy: Path, steps: int, *overrides: str) -> None:
        self.run_dir = run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        fixed = [f"run_dir={run_dir}", f"actor_rollout_ref.model.path={policy}"]
        fixed += [f"data.train_files={tasks}", f"data.val_files={tasks}", "+data.tasks.repeat=4"]
        fixed += ["data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16"]
        fixed += [f"trainer.total_training_steps={steps}", f"trainer.total_epochs={steps}"]
        fixed += ["trainer.val_before_train=false", "trainer.test_freq=-1"]
        command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(ROOT / "recipes")]
        with (run_dir / "output.log").open("a") as log:
            self.process = psutil.Popen(
                [*command, "--config-name", "embedded", *fixed, *overrides],
                cwd=ROOT,
                env={**os.environ, "VERL_PLATFORM": "cpu"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait for a good end.

        Raises:
            RuntimeError: it was another; with the last lines of the output.
        """
        if self.process.wait() != 0:
            raise RuntimeError(f"the trainer ended badly:\n{self.output()[-4000:]}")

    def kill(self) -> list[psutil.Process]:
        """`kill -9` of the process group; returns every process that the trainer had started."""
        processes = self.process.children(recursive=True)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return processes

    def output(self) -> str:
        return (self.run_dir / "output.log").read_text(errors="replace")

    def metrics(self) -> dict[int, dict[str, Any]]:
        """What veRL logged since this start, by step."""
        path = self.run_dir / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        return {row["step"]: row["data"] for row in rows if "replay/injected" in row["data"]}
