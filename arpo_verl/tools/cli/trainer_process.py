"""Run the stock trainer as a child process whose output goes to a file, and once more if it crashed."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from omegaconf import DictConfig, OmegaConf

from arpo_verl.lib.reaper import marked_environment, processes_with
from arpo_verl.records.ended_starts import Fault
from arpo_verl.records.starting import LAST_LINES, REFUSED, last_lines

STOPPING_S = 10.0
"""Seconds that a trainer has to end after Ctrl-C."""
FAILED = "the trainer failed"
"""A line of `plugin.run_callback` in the output of a trainer that an error ends, which may then hang for minutes."""
RESTARTS_A_DAY = 10
"""Most starts after a crash in 24 hours, unless more in a row are allowed."""
KILL_AFTER_S = 30.0
"""Seconds after which we kill what a crashed start left running: its processes hang."""
POLL_S, ASK_S, DAY_S = 1.0, 60.0, 86_400.0
_START = "ARPO_VERL_START"
"""Environment variable of all processes of one start."""
_MOST_LINES = 400
"""Last lines of a start's output in which we look for `FAILED`, or for a refusal of ours."""
_HEAD_GONE = "GCS may have been killed"  # Ray's words when it ends a run whose head died
_HAS_GPUS = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
sys.exit(ray.available_resources().get("GPU", 0) < int(sys.argv[2]))
"""
"""Ray ends a driver whose cluster is lost, so a process of its own asks."""


class TrainerProcess:
    """A running trainer. It has its own session, so Ctrl-C reaches Ray's processes only through the trainer.

    Args:
        command: its command line.
        log: file for its output, and for that of all processes that it starts. Earlier output stays.
        env: its environment.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        self.was_stopped = False
        """Whether we passed a signal on to it before it failed."""
        self.got_signal = False
        """Whether we passed a signal on to it at any time."""
        self._kill_at = math.inf
        self._name = secrets.token_hex(16)
        with log.open("ab") as file:
            self._begin = file.tell()
            self._process = subprocess.Popen(
                command,
                env={**marked_environment(env), _START: self._name},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def has_ended(self, within_s: float) -> bool:
        """Wait for its end, at most so long; return whether it has ended. Kill it if it does not end after Ctrl-C."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        if time.monotonic() > self._kill_at:
            self._process.kill()
        return self._process.poll() is not None

    @property
    def status(self) -> int:
        """Return the exit status as a shell does: 128 plus the signal's number if a signal ended it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    @contextlib.contextmanager
    def gets_signals(self) -> Iterator[None]:
        """Pass signals on to the trainer; a second Ctrl-C kills it. Ignored signals stay ignored."""

        def hand_on(number: int, frame: FrameType | None) -> None:
            self.got_signal = True
            is_second = self.was_stopped and number == signal.SIGINT
            self.was_stopped = self.was_stopped or FAILED not in self.last_lines(_MOST_LINES)
            if number == signal.SIGINT:
                self._kill_at = min(self._kill_at, time.monotonic() + STOPPING_S)
            self._process.send_signal(signal.SIGKILL if is_second else number)

        earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        taken = [number for number, handler in earlier.items() if handler is not signal.SIG_IGN]
        try:
            for number in taken:
                signal.signal(number, hand_on)
            yield
        finally:
            for number in taken:
                signal.signal(number, earlier[number])

    def describe_end(self) -> str:
        """Describe how it ended."""
        code = self._process.wait()
        if code >= 0:
            why = "Ray's head (gcs_server) died: " if code and self.lost_head() else ""
            return f"{why}the trainer ended with exit status {code}"
        if -code == signal.SIGALRM:
            return "the trainer failed, and did not end by itself"
        name = {number.value: number.name for number in signal.Signals}.get(-code, f"signal {-code}")
        memory = " (the kernel does that when memory runs out, see `dmesg`)"
        return f"{name} ended the trainer" + memory * (-code == signal.SIGKILL and self._kill_at == math.inf)

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """Return the last lines of this start's output."""
        return last_lines(self.log, count, self._begin)

    def lost_head(self) -> bool:
        """Return whether Ray ended it, since Ray's head died."""
        return any(_HEAD_GONE in line for line in self.last_lines(_MOST_LINES))

    def refusal(self) -> list[str]:
        """Return the output of our checks of the recipe if they ended the trainer at its start; otherwise nothing."""
        lines = self.last_lines(_MOST_LINES) if self.status == 1 else []
        first = next((number for number, line in enumerate(lines) if line.startswith(REFUSED)), len(lines))
        return [line.replace(REFUSED, "arpo-verl: ", 1) if line.startswith(REFUSED) else line for line in lines[first:]]

    def left(self) -> list[int]:
        """Return the processes of this start that still run."""
        return processes_with(f"{_START}={self._name}")


class Restarts:
    """Counts how often a run that crashed was started again.

    Args:
        in_a_row: most starts in a row that finish no new step; 0 for none at all.
    """

    def __init__(self, in_a_row: int) -> None:
        self.limit = ""
        """Which limit forbids one more start."""
        self._most, self._most_a_day = in_a_row, max(RESTARTS_A_DAY, in_a_row)
        self._step, self._in_a_row = 0, 0
        self._times: list[float] = []

    def __str__(self) -> str:
        return f"restart {len(self._times)} of at most {self._most_a_day} in 24 hours"

    def count(self, process: TrainerProcess, step: int | None, fault: Fault | None) -> bool:
        """Return whether the run starts again, and count it then.

        Args:
            process: the trainer that has ended.
            step: the last step that it finished.
            fault: what it noted as the reason of its end.
        """
        if step is not None and step > self._step:
            self._step, self._in_a_row = step, 0
        if process.status == 0 or process.got_signal or not self._most:
            return False
        began = self._step > 0 or process.lost_head()
        if fault.lasts if fault else not began or (step is None and process.refusal()):
            return False  # the next start would end in the same way
        now = time.monotonic()
        self._times = [at for at in self._times if now - at < DAY_S]
        if self._in_a_row == self._most:
            self.limit = f"the run does not start again: {self._most} starts in a row finished no new step"
        elif len(self._times) == self._most_a_day:
            self.limit = f"the run does not start again: it did so {self._most_a_day} times in 24 hours"
        else:
            self._in_a_row += 1
            self._times.append(now)
        return not self.limit


def wait_until_free(config: DictConfig, process: TrainerProcess) -> None:
    """Wait until nothing of the ended start runs and the cluster has the recipe's GPUs; print what we wait for."""
    from arpo_verl.plugin.recipe.checks import joins_cluster  # it imports torch, so not before a crash

    kill_at = time.monotonic() + KILL_AFTER_S
    if process.left():
        print("waits        until the processes of this start have ended", flush=True)
    while left := process.left():
        for pid in left if time.monotonic() > kill_at else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    needed = trainer.nnodes * trainer.n_gpus_per_node
    if trainer.v1.trainer_mode == "separate_async":
        needed += rollout.nnodes * rollout.n_gpus_per_node
    if not joins_cluster(config) or _has_gpus(config, needed):
        return  # without a cluster the GPUs are this machine's
    print(f"waits        until the Ray cluster answers and has {needed} free GPUs", flush=True)
    while not _has_gpus(config, needed):
        time.sleep(POLL_S)


def _has_gpus(config: DictConfig, number: int) -> bool:
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS") or "auto"
    command = [sys.executable, "-c", _HAS_GPUS, address, str(number)]
    try:
        return subprocess.run(command, capture_output=True, timeout=ASK_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
