"""The run's folder: one trainer uses it at a time, and every node sees the same one.

Two trainers in one folder would write over each other's checkpoints, records and store. And veRL writes a checkpoint's
shards from every training node, TransferQueue's state from any, and reads both back from every one; the driver writes
and reads the rest. On disks of their own the shards lie apart, and a resumed run fails.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
import uuid
from pathlib import Path

from arpo_verl.errors import ConfigError

logger = logging.getLogger(__name__)

LOCK_FILE = ".trainer"
"""In the run's folder. It stays; what counts is whether a process holds its lock."""
ANSWER_TIMEOUT_S = 300.0
"""A node may have to start its first worker process to answer."""
PATIENCE_S = 60.0
"""A network file system may show a new folder late: nfs(5) believes what it knows of one for up to `acdirmax`, 60 s."""

_held: dict[Path, int] = {}


def hold_run(run_dir: Path) -> None:
    """Take the run's folder for this process, until it ends, however it does: the next start need not wait.

    By POSIX's locks, which NFS has too, and which a forked child does not inherit.

    Raises:
        ConfigError: another process holds it; says which.
        OSError: the folder cannot be written.
    """
    path = run_dir / LOCK_FILE
    if path in _held:
        return  # closing a second one would let go of the first
    run_dir.mkdir(parents=True, exist_ok=True)
    file = _lock(path)
    if file is not None:
        os.ftruncate(file, 0)
        since = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}\n"
        os.pwrite(file, since.encode(), 0)
        _held[path] = file


def check_free(run_dir: Path) -> None:
    """Refuse a run's folder that a trainer uses, without taking it.

    Raises:
        ConfigError: says which process uses it.
    """
    path = run_dir / LOCK_FILE
    if path not in _held and path.is_file() and (file := _lock(path)) is not None:
        os.close(file)


def _lock(path: Path) -> int | None:
    """The lock, held; None where there are no locks."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            logger.warning("%s has no file locks (%s): use it with one trainer alone", path.parent, error)
            os.close(file)
            return None
        holder = os.pread(file, 200, 0).decode("utf-8", "replace").strip() or "unknown"
        os.close(file)
        raise ConfigError(
            f"another trainer uses {path.parent} ({holder}); wait for it, stop it, or name another folder by "
            "run_dir=FOLDER"
        ) from error


def require_shared(folder: Path, option: str, patience_s: float = PATIENCE_S) -> None:
    """Refuse a folder that a node of this job's cluster does not see; one node alone sees it.

    Nodes without CPUs only host desktops, and are not asked: veRL places no process of its own on them.

    Args:
        option: the folder's name in the recipe, for the message.
        patience_s: for which a node looks before it is taken not to see it.

    Raises:
        ConfigError: names the nodes that do not see it; or it cannot be written to.
    """
    import ray  # here, since `arpo-verl train` asks for the lock alone
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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
