"""One trainer a run: two in one folder would write over each other's checkpoints, records and store."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path

from arpo_verl.errors import ConfigError

logger = logging.getLogger(__name__)

LOCK_FILE = ".trainer"
"""In the run's folder. It stays; what counts is whether a process holds its lock."""

_held: dict[Path, int] = {}


def hold_run(run_dir: Path) -> None:
    """Take the run's folder for this process, until it ends, however it does: the next start need not wait.

    By POSIX's locks, which NFS has too, and which a forked child does not inherit.

    Raises:
        ConfigError: another process holds it; says which.
        OSError: the folder cannot be written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / LOCK_FILE
    if path in _held:
        return  # closing a second one would let go of the first
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            logger.warning("%s has no file locks (%s): see yourself that one trainer alone uses it", run_dir, error)
            os.close(file)
            return
        holder = os.pread(file, 200, 0).decode("utf-8", "replace").strip() or "unknown"
        os.close(file)
        raise ConfigError(
            f"run_dir must be one trainer's, got {run_dir}, which another uses: {holder}; wait for it, end it, or name "
            "another run_dir"
        ) from error
    os.ftruncate(file, 0)
    os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}\n".encode(), 0)
    _held[path] = file
