"""Check that every node sees the same run folder.

Every training node writes shards of a checkpoint, any node TransferQueue's state, and all read both back. The driver
writes and reads the rest. On separate disks the shards would be apart, and a resumed run would fail.
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
"""Seconds for a node to answer: it may first have to start a worker process."""
PATIENCE_S = 60.0
"""Seconds for a new folder to appear: nfs(5) caches what it knows of a folder for up to `acdirmax`, 60 s."""


def require_shared(folder: Path, option: str, patience_s: float = PATIENCE_S) -> None:
    """Refuse a folder that some node of this job's cluster does not see. With a single node, do nothing.

    Nodes without CPUs only host desktops and are not asked: veRL places none of its processes there.

    Args:
        option: the folder's name in the recipe, for the message.
        patience_s: seconds that a node looks for the folder.

    Raises:
        ConfigError: nodes do not see it (the message names them), or it cannot be written.
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
        # With the address too: containers on several hosts may have the same host name.
        names = [f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in nodes]
        blind = [name for name, sees_it in zip(names, seen, strict=True) if not sees_it]
    finally:
        mark.unlink(missing_ok=True)
    if blind:
        raise ConfigError(
            f"{option} must be a folder that all nodes share, got {folder}, which {', '.join(blind)} "
            "does not see: a checkpoint's parts would be on different disks, and no run could resume; "
            "put run_dir on storage that is mounted at the same path everywhere"
        )


def _appears(path: str, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while not os.path.isfile(path):
        if time.monotonic() >= deadline:
            return False
        time.sleep(1.0)
    return True
