"""Only one trainer at a time may use a run's folder: two would overwrite each other's checkpoints and records."""

from __future__ import annotations

import logging
from pathlib import Path

from arpo_verl.errors import ConfigError
from arpo_verl.lib.file_lock import FileLock, LockedError, NoLocksError

logger = logging.getLogger(__name__)

LOCK_FILE = ".trainer"
"""A file in the run's folder. It stays there; a run is in use if a process holds its lock."""

_held: dict[Path, FileLock] = {}


def hold_run(run_dir: Path) -> None:
    """Lock the run's folder for this process until it ends, in any way, so that the next start need not wait.

    Raises:
        ConfigError: another process holds it; the message names it.
        OSError: the folder cannot be written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / LOCK_FILE
    if path not in _held and (lock := _lock(path)) is not None:
        _held[path] = lock


def check_free(run_dir: Path) -> None:
    """Check that no trainer uses a run's folder, without locking it.

    Raises:
        ConfigError: a trainer uses it; the message names its process.
    """
    path = run_dir / LOCK_FILE
    if path not in _held and path.is_file() and (lock := _lock(path)) is not None:
        lock.close()


def _lock(path: Path) -> FileLock | None:
    """Take the lock; None if the file system has no locks."""
    try:
        return FileLock(path)
    except NoLocksError as error:
        logger.warning("%s has no file locks (%s), so make sure that only one trainer uses it", path.parent, error)
        return None
    except LockedError as error:
        raise ConfigError(
            f"another trainer uses {path.parent} ({error.holder}); wait for it, stop it, or name another folder by "
            "run_dir=FOLDER"
        ) from error
