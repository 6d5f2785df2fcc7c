"""Starts the stock trainer as a user does, and kills it as no user should."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from support import ROOT


class TrainerProcess:
    """`python -m verl.trainer.main_ppo`, in a session of its own, with `record_advantages.py` loaded."""

    def __init__(self, folder: Path, overrides: list[str]):
        recorded = folder / "recorded"
        recorded.mkdir(parents=True, exist_ok=True)
        env = {
            **os.environ,
            "VERL_PLATFORM": "cpu",
            "VERL_USE_EXTERNAL_MODULES": "support.record_advantages",
            "PYTHONPATH": str(ROOT / "tests"),
            "ARPO_VERL_RECORDED": str(recorded),
        }
        command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(ROOT / "recipes")]
        self._command, self._env = [*command, "--config-name", "embedded", *overrides], env
        self._log = folder / "output.log"
        self._start()
        # Ray gives itself 30 s to start, which a machine under load may not keep.
        for _ in range(3):
            wait_until(lambda: "Started a local Ray instance" in self.stdout() or self.has_ended(), timeout_s=600)
            if not self.has_ended() or "timed out during startup" not in self.stdout():
                break
            self._start()

    def _start(self) -> None:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stdout(self) -> str:
        return self._log.read_text(errors="replace")

    def check_running(self) -> None:
        assert not self.has_ended(), self.stdout()[-8000:]

    def wait(self) -> None:
        """Wait for the end, which must be a good one."""
        assert self._process.wait(timeout=3600) == 0, self.stdout()[-8000:]

    def kill(self) -> list[psutil.Process]:
        """`kill -9` of the process group.

        Returns:
            Every process that it had started, directly or not: Ray's, the workers, the desktops.
        """
        processes = psutil.Process(self._process.pid).children(recursive=True)
        os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.wait(timeout=60) == -signal.SIGKILL
        return processes


def wait_until(condition, timeout_s: float) -> None:
    """Wait for a condition, and fail when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"what was waited for did not come within {timeout_s} s"
        time.sleep(0.05)
