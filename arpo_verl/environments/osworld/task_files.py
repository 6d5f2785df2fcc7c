"""The client's folder of one desktop.

The client keeps what it downloads, and what its getters fetch from the guest, in `<folder>/<task_id>/`, takes any file
that is there for whole, and knows no locks. Two desktops with one folder would race, and what an earlier episode left
could be judged in the place of this one's. So each desktop has a folder of its own, emptied for each episode, and
downloads are copied into it from a store that all share.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from arpo_verl.environments.osworld.downloads import DownloadStore, downloads_of
from arpo_verl.types import Task

PREFIX = "arpo_verl-"


class TaskFiles:
    """One desktop's folder. Not shared between threads.

    Args:
        store: the folder of finished downloads.
        name: the desktop's.
    """

    def __init__(self, store: Path, name: str):
        self._store = DownloadStore(store)
        _sweep(Path(tempfile.gettempdir()))
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
        self._lock = _lock(self.folder)

    def begin(self, task: Task) -> None:
        """Empty the folder and bring in all that `task` downloads, so that the client downloads nothing itself.

        What the evaluator will compare with comes now too: an episode whose verdict could not be had is not played.

        Raises:
            DesktopSetupError: a download cannot be had.
        """
        for child in self.folder.iterdir():
            shutil.rmtree(child, ignore_errors=True)
        folder = self.folder / task.task_id
        folder.mkdir()
        for download in downloads_of(task.spec):
            self._store.copy(task.task_id, download, folder / download.name)

    def remove(self) -> None:
        """Delete the desktop's folder; the store stays."""
        _remove(self.folder)
        self._lock.close()


def default_store() -> Path:
    """`$XDG_CACHE_HOME/arpo_verl/downloads`, by default under `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "arpo_verl" / "downloads"


# --- Folders of processes that were killed ----------------------------------------------------------------------------


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _lock(folder: Path) -> IO[bytes]:
    """Hold the folder's lock for as long as this process lives: by it others know that the folder is in use."""
    # Locked before it has its name, so that no other process finds it unlocked.
    unnamed = folder.with_name(f"{folder.name}.new")
    file = unnamed.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    unnamed.rename(_lock_path(folder))
    return file


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _lock_path(folder).unlink(missing_ok=True)


def _sweep(where: Path) -> None:
    """Delete the folders of processes that died without doing so: task files are large, and a worker may be killed."""
    for path in where.glob(f"{PREFIX}*.lock"):
        with contextlib.suppress(OSError), path.open("rb") as file:  # another's, or just removed
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path.with_suffix(""))
