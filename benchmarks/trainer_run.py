"""Starts the stock trainer on embedded desktops, for the benchmarks beside this file."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from arpo_verl.records.run_summary import METRICS_FILE, read_metrics

ROOT = Path(__file__).parents[1]
GROUPS = 8
"""In a training step."""
# Tasks of one or two actions, which a short imitation learns about half-way: some groups fail, some are solved.
TASKS = ("dialog-confirm-yes", "dialog-confirm-no", "message-press-green", "radio-size-large")


def argument_parser(description: str | None, smoke: str) -> argparse.ArgumentParser:
    """The arguments of every benchmark that trains.

    Args:
        smoke: what `--smoke` shrinks it to.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help=f"{smoke}: does it run at all")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--work", type=Path, help="folder to work in and keep; the policy there is used again")
    return parser


def write_figures(path: Path | None, figures: Mapping[str, Any]) -> None:
    """Write them as JSON where `--json` asked for it."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")


@dataclass(frozen=True)
class Workplace:
    """A folder with tasks, and a policy that has half learnt them."""

    folder: Path

    @classmethod
    def make(cls, folder: Path | None, target_success: float = 0.25) -> Workplace:
        """In `folder`, or in a new one for None; a policy that is there is used again."""
        place = cls((folder or Path(tempfile.mkdtemp(prefix="benchmark-"))).absolute())
        place.tasks.mkdir(parents=True, exist_ok=True)
        for task_id in TASKS:
            shutil.copy(ROOT / "arpo_verl/tasks/embedded" / f"{task_id}.json", place.tasks)
        if not (place.policy / "config.json").is_file():
            command = [sys.executable, "-m", "arpo_verl.policy", "--out", str(place.policy)]
            command += ["--tasks", str(place.tasks), "--target-success", str(target_success)]
            subprocess.run(command, check=True)
        return place

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks"

    @property
    def policy(self) -> Path:
        return self.folder / "policy"

    def start(self, name: str, steps: int, *overrides: str) -> TrainerRun:
        """Start the trainer in the subfolder `name`, to the end of step `steps`; each task is twice in a step."""
        fixed = [f"actor_rollout_ref.model.path={self.policy}", f"data.train_files={self.tasks}"]
        fixed += [f"data.val_files={self.tasks}", f"+data.tasks.repeat={GROUPS // len(TASKS)}"]
        fixed += [f"data.train_batch_size={GROUPS}", f"actor_rollout_ref.actor.ppo_mini_batch_size={GROUPS}"]
        fixed += [f"trainer.total_training_steps={steps}", f"trainer.total_epochs={steps}"]
        fixed += ["trainer.val_before_train=false", "trainer.test_freq=-1"]
        return TrainerRun(self.folder / name, *fixed, *overrides)


class TrainerRun:
    """One start of the trainer in `run_dir`, in a session of its own.

    Args:
        overrides: options behind the recipe `embedded`.
    """

    def __init__(self, run_dir: Path, *overrides: str) -> None:
        self.run_dir = run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(ROOT / "recipes")]
        with (run_dir / "output.log").open("a") as log:
            self.process = psutil.Popen(
                [*command, "--config-name", "embedded", f"run_dir={run_dir}", *overrides],
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

    def kill(self) -> None:
        """`kill -9` of the process group."""
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """`kill` it and wait until nothing that it started runs: its agents still play, and record, for a moment."""
        try:
            processes = self.process.children(recursive=True)
        except psutil.NoSuchProcess:  # it ended by itself
            processes = []
        self.kill()
        await_end(processes)

    def output(self) -> str:
        return (self.run_dir / "output.log").read_text(errors="replace")


def await_end(processes: Sequence[psutil.Process], timeout_s: float = 120.0) -> list[psutil.Process]:
    """Wait until none of them runs. Returns those that still do after the time."""
    deadline = time.monotonic() + timeout_s
    while (alive := [process for process in processes if _is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    """Whether it still runs: one that ended, and that nobody has asked for its exit code, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def read_steps(run_dir: Path) -> dict[int, dict[str, Any]]:
    """What veRL logged since the last start in `run_dir`, by training step."""
    path = run_dir / METRICS_FILE
    rows = read_metrics(path) if path.is_file() else []
    return {step: data for step, data in rows if "replay/injected" in data}
