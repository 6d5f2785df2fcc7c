"""Starts the stock trainer on embedded desktops as a user does, and kills it as no user should."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from figures import Arguments

from arpo_verl.records.json_files import read_lines
from arpo_verl.records.layout import METRICS_FILE
from arpo_verl.records.metrics_files import MetricsLine, rows_of
from arpo_verl.tasks.loader import EMBEDDED_DIR
from arpo_verl.tools.policy.shipped import write_shipped

ROOT = Path(__file__).parents[1]
EMBEDDED = ROOT / "recipes" / "embedded.yaml"
GROUPS = 8
"""In a training step."""
MAX_STARTS = 4
START_AGAIN = ("timed out during startup", "EADDRINUSE")
"""In the output of a trainer that failed at its start: Ray's words, and torch's, of a port that veRL found free a while
before its workers listen there."""
# Tasks of one or two actions, which a short imitation learns about half-way: some groups fail, some are solved.
TASKS = ("dialog-confirm-yes", "dialog-confirm-no", "message-press-green", "radio-size-large")
MODES: Mapping[str, tuple[str, ...]] = {
    "sync": (),
    "colocate_async": ("trainer.v1.trainer_mode=colocate_async",),
    "separate_async": (
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={GROUPS // 2}",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=ray",
        "ray_kwargs.ray_init.num_gpus=2",
    ),
}
"""veRL's trainer modes: the options with which this machine runs each."""


def trainer_arguments(description: str | None, smoke: str) -> Arguments:
    """Those of a benchmark that trains."""
    parser = Arguments(description, smoke)
    parser.add_argument("--work", type=Path, help="folder to work in and keep")
    return parser


def copy_tasks(folder: Path, task_ids: Sequence[str] = TASKS, suite: Path = EMBEDDED_DIR) -> Path:
    """Copy shipped tasks into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for task_id in task_ids:
        shutil.copy(suite / f"{task_id}.json", folder)
    return folder


@dataclass(frozen=True)
class Workplace:
    """A folder with tasks, and the shipped policy, which has half learnt them."""

    folder: Path

    @classmethod
    def make(cls, folder: Path | None) -> Workplace:
        """In `folder`, or in a new one for None."""
        place = cls((folder or Path(tempfile.mkdtemp(prefix="benchmark-"))).absolute())
        copy_tasks(place.tasks)
        write_shipped("embedded", place.policy)
        return place

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks"

    @property
    def policy(self) -> Path:
        return self.folder / "policy"

    def start(self, name: str, steps: int, *overrides: str, groups: int = GROUPS, **options: Any) -> TrainerRun:
        """Start the trainer in the subfolder `name`, to the end of step `steps`; a step has each task equally often."""
        fixed = [f"actor_rollout_ref.model.path={self.policy}", f"data.train_files={self.tasks}"]
        fixed += [f"data.val_files={self.tasks}", f"+data.tasks.repeat={groups // len(TASKS)}"]
        fixed += [f"data.train_batch_size={groups}", f"actor_rollout_ref.actor.ppo_mini_batch_size={groups}"]
        fixed += [f"trainer.total_training_steps={steps}", f"trainer.total_epochs={steps}"]
        fixed += ["trainer.val_before_train=false", "trainer.test_freq=-1"]
        return TrainerRun(self.folder / name, *fixed, *overrides, **options)


class TrainerRun:
    """The stock trainer in `run_dir`, in a session of its own.

    A trainer whose Ray did not start within the 30 s that it gives itself, as on a busy machine, is started again; so
    is one whose port another process has taken.

    Args:
        overrides: options behind the recipe.
        env: more environment variables.
        recipe: its file.
        restarts: start it by `arpo-verl train`, which starts it again so often; None starts veRL's own command.
    """

    def __init__(
        self,
        run_dir: Path,
        *overrides: str,
        env: Mapping[str, str] | None = None,
        recipe: Path = EMBEDDED,
        restarts: int | None = None,
    ) -> None:
        stock = ["verl.trainer.main_ppo", "--config-dir", str(recipe.parent), "--config-name", recipe.stem]
        front = ["arpo_verl.tools.cli.main", "train", str(recipe), f"--restarts={restarts}"]
        module = stock if restarts is None else front
        self._command = [sys.executable, "-m", *module, f"run_dir={run_dir}", *overrides]
        self._env = {**os.environ, "VERL_PLATFORM": "cpu", **(env or {})}
        self._env.pop("ARPO_VERL_RUN", None)  # a run gets it by its recipe
        self.run_dir = run_dir
        self.log = run_dir / ("output.log" if restarts is None else "front.log")
        self._starts = 0
        run_dir.mkdir(parents=True, exist_ok=True)
        self._start()
        atexit.register(self._leave_nothing)

    def _leave_nothing(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def _start(self) -> None:
        self._starts += 1
        with self.log.open("ab") as log:
            self._log_begin = log.tell()
            self._process = psutil.Popen(
                self._command,
                cwd=ROOT,
                env=self._env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Whether it ended by itself."""
        if self._process.poll() is None:
            return False
        good = self._process.returncode == 0
        if good or self._starts == MAX_STARTS or not any(words in self.output() for words in START_AGAIN):
            return True
        self._start()
        return False

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = math.inf) -> None:
        """Wait for a moment of the run.

        Raises:
            RuntimeError: the trainer ended before; with the last lines of the output.
            TimeoutError: the moment did not come in time; with the same.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            has_ended = self.has_ended()
            if condition():
                return
            if has_ended:
                raise RuntimeError(f"the trainer ended too early:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"what was waited for did not come within {timeout_s} s:\n{self.last_words()}")
            time.sleep(0.05)

    def wait(self, timeout_s: float = math.inf) -> None:
        """Wait for a good end.

        Raises:
            RuntimeError: it was another; with the last lines of the output.
            TimeoutError: it did not come in time; with the same.
        """
        self.wait_for(self.has_ended, timeout_s)
        if self._process.wait() != 0:
            raise RuntimeError(f"the trainer ended badly:\n{self.last_words()}")

    def processes(self) -> list[psutil.Process]:
        """What it has started, directly or not: Ray's processes, the workers, the desktops."""
        try:
            return self._process.children(recursive=True)
        except psutil.NoSuchProcess:  # it ended by itself
            return []

    def kill(self) -> None:
        """`kill -9` of the process group."""
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        """SIGTERM to the trainer, as a manager of nodes sends it, and wait for its end."""
        self._process.terminate()
        self._process.wait()

    def stop(self) -> None:
        """`kill` it and wait until nothing that it started runs: its agents still play, and record, for a moment."""
        processes = self.processes()
        self.kill()
        await_end(processes)

    def output(self) -> str:
        """Of this start."""
        return self.log.read_bytes()[self._log_begin :].decode(errors="replace")

    def last_words(self) -> str:
        """The end of the output."""
        return self.output()[-6000:]


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
    rows = rows_of(read_lines(run_dir / METRICS_FILE, MetricsLine))
    return {step: data for step, data in rows if "replay/injected" in data}
