"""Start a crashed run again: whether, how often, and what to wait for."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from arpo_verl.errors import ConfigError
from arpo_verl.records.run_lock import check_free

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from arpo_verl.records.ended_starts import Fault
    from arpo_verl.tools.cli.trainer_process import TrainerProcess

A_DAY = 10
"""Most starts after a crash in 24 hours, unless more in a row are allowed."""
KILL_AFTER_S = 30.0
"""Seconds after which we kill what the ended start left running: its processes hang."""
POLL_S, ASK_S, DAY_S = 1.0, 60.0, 86_400.0
_FREE_GPUS = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print("free GPUs:", ray.available_resources().get("GPU", 0))
"""
"""Ray ends a driver whose cluster is lost, so a process of its own asks."""


class Restarts:
    """Count how often a run that crashed was started again.

    Args:
        in_a_row: most starts in a row that finish no new step; 0 for none at all.
    """

    def __init__(self, in_a_row: int) -> None:
        self.limit: str | None = None
        """Which limit forbids one more start."""
        self._most, self._most_a_day = in_a_row, max(A_DAY, in_a_row)
        self._step, self._in_a_row = 0, 0
        self._times: list[float] = []

    def allow(self, process: TrainerProcess, step: int | None, fault: Fault | None) -> bool:
        """Return whether the run starts again.

        Args:
            process: the trainer that has ended.
            step: the last step that it finished.
            fault: what it noted as the reason of its end.
        """
        if step is not None and step > self._step:
            self._step, self._in_a_row = step, 0
        if process.status == 0 or process.got_signal or not self._most:
            return False
        ours = process.has_lasting_error() or (step is None and process.refusal())
        ends_alike = fault.lasts if fault else self._step == 0 or ours
        if ends_alike:  # so would the next start
            return False
        self._times = [at for at in self._times if time.monotonic() - at < DAY_S]
        if self._in_a_row == self._most:
            self.limit = f"the run does not start again: {self._most} starts in a row finished no new step"
        elif len(self._times) == self._most_a_day:
            self.limit = f"the run does not start again: it did so {self._most_a_day} times in 24 hours"
        return self.limit is None

    def count(self) -> str:
        """Count one more; return its number in words."""
        self._in_a_row += 1
        self._times.append(time.monotonic())
        return f"restart {len(self._times)} of at most {self._most_a_day} in 24 hours"


def wait_until_free(config: DictConfig, run_dir: Path, process: TrainerProcess) -> None:
    """Wait until nothing of the ended start runs and the cluster has the recipe's GPUs; print what we wait for."""
    kill_at, printed = time.monotonic() + KILL_AFTER_S, ""
    while waits_for := _obstacle(config, run_dir, process):
        if waits_for != printed:
            printed = waits_for
            print(f"waits        until {waits_for}", flush=True)
        if time.monotonic() > kill_at:
            for pid in process.left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _obstacle(config: DictConfig, run_dir: Path, process: TrainerProcess) -> str | None:
    from arpo_verl.plugin.recipe.checks import joins_cluster  # it imports torch, so not before a crash

    if process.left():
        return "the processes of this start have ended"
    try:
        check_free(run_dir)
    except ConfigError:
        return f"no other trainer uses {run_dir}"
    if not joins_cluster(config):
        return None  # the GPUs are this machine's
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    needed = trainer.nnodes * trainer.n_gpus_per_node
    if trainer.v1.trainer_mode == "separate_async":
        needed += rollout.nnodes * rollout.n_gpus_per_node
    return None if _free_gpus(config) >= needed else f"the Ray cluster answers and has {needed} free GPUs"


def _free_gpus(config: DictConfig) -> float:
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS") or "auto"
    command = [sys.executable, "-c", _FREE_GPUS, address]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired:
        return 0.0
    found = re.search(r"^free GPUs: ([0-9.]+)$", answer.stdout, re.MULTILINE)
    return float(found[1]) if found else 0.0
