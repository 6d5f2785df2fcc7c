"""Only one trainer at a time may use a run's folder: two would overwrite each other's checkpoints and records."""

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
"""A file in the run's folder. It stays there; a run is in use if a process holds its lock."""

_held: dict[Path, int] = {}


def hold_run(run_dir: Path) -> None:
    """Lock the run's folder for this process until it ends, in any way, so that the next start need not wait.

    It uses POSIX locks, which NFS has too, and which a forked child does not inherit.

    Raises:
        ConfigError: another process holds it; the message names it.
        OSError: the folder cannot be written.
    """
    path = run_dir / LOCK_FILE
    if path in _held:
        return  # closing a second descriptor would release the first one's lock
    run_dir.mkdir(parents=True, exist_ok=True)
    file = _lock(path)
    if file is not None:
        os.ftruncate(file, 0)
        since = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}\n"
        os.pwrite(file, since.encode(), 0)
        _held[path] = file


def check_free(run_dir: Path) -> None:
    """Check that no trainer uses a run's folder, without locking it.

    Raises:
        ConfigError: a trainer uses it; the message names its process.
    """
    path = run_dir / LOCK_FILE
    if path not in _held and path.is_file() and (file := _lock(path)) is not None:
        os.close(file)


def _lock(path: Path) -> int | None:
    """Take the lock; return its descriptor, or None if the file system has no locks."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            logger.warning("%s has no file locks (%s), so make sure that only one trainer uses it", path.parent, error)
            os.close(file)
            return None
        holder = os.pread(file, 200, 0).decode("utf-8", "replace").strip() or "unknown"
        os.close(file)
        raise ConfigError(
            f"another trainer uses {path.parent} ({holder}); wait for it, stop it, or name another folder by "
            "run_dir=FOLDER"
        ) from error
