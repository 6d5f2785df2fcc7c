"""Scratch files of one running store: what does not fit its memory. Gone with the process; checkpoints are others'."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from arpo_verl.errors import ReplayError

logger = logging.getLogger(__name__)

_PREFIX = "arpo-replay-"
_LOCK = "in-use"


class SpillFolder:
    """A folder of its own below `parent`; those that killed processes left behind are removed first.

    Raises:
        ReplayError: nothing can be written there.
    """

    def __init__(self, parent: Path | str) -> None:
        parent = Path(parent)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(parent)
            scratch = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
            lock = _lock(scratch)
            # Under its name only once it is locked: else another process could take it for abandoned.
            self.path = scratch.rename(parent / scratch.name.removeprefix("."))
        except OSError as error:
            raise ReplayError(f"replay.spill_dir must be a folder that can be written to, got {parent}: {error}") from (
                error
            )
        self._finalizer = weakref.finalize(self, _remove_own, self.path, lock, os.getpid())

    def write(self, name: str, content: bytes) -> None:
        """Keep `content`; not synced, since it need not outlive the process.

        Raises:
            OSError: the disk refuses; nothing is kept.
        """
        path = self.path / name
        try:
            path.write_bytes(content)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> bytes:
        """The content kept under `name`.

        Raises:
            ReplayError: somebody removed it.
        """
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise ReplayError(f"a spilled screenshot is gone: {error}; let nothing else clean {self.path}") from error

    def remove(self, name: str) -> None:
        """Forget `name`."""
        (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder; done by itself when the store is dropped or the interpreter ends."""
        self._finalizer()


def _lock(folder: Path) -> int:
    """Hold the folder's lock; the kernel lets go of it however the process ends."""
    descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _remove_own(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child, which ends with a copy of this
        _remove(folder, lock)


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:
            continue  # being made right now, or not ours
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        logger.info("removing the spill folder %s of a process that is gone", folder)
        _remove(folder, lock)
