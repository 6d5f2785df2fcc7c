"""The run's folder: every node sees the same one.

veRL writes a checkpoint's shards from every training node, TransferQueue's state from any, and reads both back from
every one; the driver writes and reads the rest. On disks of their own the shards lie apart, and a resumed run fails.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from arpo_verl.errors import ConfigError

ANSWER_TIMEOUT_S = 300.0
"""A node may have to start its first worker process to answer."""
PATIENCE_S = 60.0
"""A network file system may show a new folder late: nfs(5) believes what it knows of one for up to `acdirmax`, 60 s."""


def require_shared(folder: Path, option: str, patience_s: float = PATIENCE_S) -> None:
    """Refuse a folder that a node of this job's cluster does not see; one node alone sees it.

    Nodes without CPUs only host desktops, and are not asked: veRL places no process of its own on them.

    Args:
        option: the folder's name in the recipe, for the message.
        patience_s: for which a node looks before it is taken not to see it.

    Raises:
        ConfigError: names the nodes that do not see it; or it cannot be written to.
    """
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    if len(nodes) < 2:
        return
    mark = folder / f".seen-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise ConfigError(f"{option} must be a folder that can be written to, got {folder}: {error}") from error
    try:
        sees = ray.remote(num_cpus=0)(_appears)
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        answers = [sees.options(scheduling_strategy=place).remote(str(mark), patience_s) for place in places]
        seen = ray.get(answers, timeout=ANSWER_TIMEOUT_S)
        # By host name and address: containers on several hosts may have one name.
        names = [f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in nodes]
        blind = [name for name, sees_it in zip(names, seen, strict=True) if not sees_it]
    finally:
        mark.unlink(missing_ok=True)
    if blind:
        raise ConfigError(
            f"{option} must be a folder that all nodes share, got {folder}, which {', '.join(blind)} "
            "does not see: a checkpoint's parts would lie on different disks, and no run could resume; "
            "put run_dir on storage that is mounted at the same place everywhere"
        )


def _appears(path: str, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while not os.path.isfile(path):
        if time.monotonic() >= deadline:
            return False
        time.sleep(1.0)
    return True
