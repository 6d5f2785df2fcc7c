"""Ray's worker processes as forks of one that has imported what they need.

    hydra: {callbacks: {warm_workers: {_target_: arpo_verl.cpu.warm_workers.WarmWorkers}}}

A run has a dozen, and each imports veRL, torch and transformers, 5 to 8 s of a core: most of a start on two cores. So
Ray learns, by veRL's own option `ray_kwargs.ray_init.runtime_env.py_executable`, to start a worker by
`cpu/worker_client.py`, which orders it from `cpu/worker_server.py`: a fork with the client's arguments, environment,
folder, files, signal mask and process group, that runs Ray's own script. What is imported is imported once, and lies
in memory once.

Only for a Ray of the run's own, on a CPU, with our rollout engine: a process that has touched a GPU cannot be forked,
and of vLLM's own processes below a fork nothing is known.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from arpo_verl.cpu.options import NAME
from arpo_verl.files import ScratchFolder

CLIENT = Path(__file__).with_name("worker_client.py")


class WarmWorkers(Callback):
    """A recipe names it under `hydra.callbacks`."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Have the Ray that the trainer is about to start take its workers from a server."""
        ray_init = config.ray_kwargs.ray_init
        is_own = ray_init.get("address") == "local" and os.environ.get("VERL_PLATFORM", "").lower() == "cpu"
        is_ours = config.actor_rollout_ref.rollout.name == NAME
        if is_own and is_ours and ray_init.runtime_env.py_executable is None:
            # Anybody who reaches the socket can start a process as us: nobody else may enter the folder.
            self._folder = ScratchFolder(Path(tempfile.gettempdir()), "arpo_verl-workers-")
            ray_init.runtime_env.py_executable = py_executable(self._folder.path)
            # The first workers wait for the server's imports; by default Ray gives up after 60 s, as on a busy machine.
            os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")


def py_executable(folder: Path) -> str:
    """The words before a worker's script that make it a fork; good for one Ray.

    Args:
        folder: for the server's socket.
    """
    return shlex.join([sys.executable, "-I", "-S", str(CLIENT), str(folder / "socket")])
