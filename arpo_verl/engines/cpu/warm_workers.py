"""Make Ray's worker processes forks of one process that has imported their modules.

    hydra: {callbacks: {warm_workers: {_target_: arpo_verl.engines.cpu.warm_workers.WarmWorkers}}}

A run has a dozen workers, and each imports veRL, torch and transformers, 5 to 8 s of a core: most of a start on two
cores. So veRL's own option `ray_kwargs.ray_init.runtime_env.py_executable` makes Ray start a worker as
`engines/cpu/worker_client.py`, which requests it from `engines/cpu/worker_server.py`. It gets a fork with the client's
arguments, environment, folder, files, signal mask and process group, which runs Ray's own script. So each module is
imported once, and lies in memory once.

This is only for a Ray that the run starts itself, on a CPU, with our rollout engine. A process that has used a GPU
cannot be forked, and vLLM's own processes have not been tried below a fork.
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

from arpo_verl.engines.cpu.options import NAME
from arpo_verl.lib.files import ScratchFolder

CLIENT = Path(__file__).with_name("worker_client.py")


class WarmWorkers(Callback):
    """The callback that a recipe names under `hydra.callbacks`."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Make the Ray that the trainer is about to start take its workers from a server."""
        ray_init = config.ray_kwargs.ray_init
        is_own = ray_init.get("address") == "local" and os.environ.get("VERL_PLATFORM", "").lower() == "cpu"
        is_ours = config.actor_rollout_ref.rollout.name == NAME
        if is_own and is_ours and ray_init.runtime_env.py_executable is None:
            # Whatever reaches the socket can start a process as our user, so only that user may enter the folder.
            self._folder = ScratchFolder(Path(tempfile.gettempdir()), "arpo_verl-workers-")
            ray_init.runtime_env.py_executable = py_executable(self._folder.path)
            # The first workers wait for the server's imports, on a busy machine longer than Ray's default of 60 s.
            os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")


def py_executable(folder: Path) -> str:
    """Return the command that goes before a worker's script to make it a fork, for one Ray.

    Args:
        folder: where the server's socket lies.
    """
    return shlex.join([sys.executable, "-I", "-S", str(CLIENT), str(folder / "socket")])
