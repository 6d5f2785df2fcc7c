"""The client's folder of one desktop.

The client keeps what it downloads, and what its getters fetch from the guest, in `<folder>/<task_id>/`, takes any file
that is there for whole, and knows no locks. Two desktops with one folder would race, and what an earlier episode left
could be evaluated in the place of this one's. So each desktop has a folder of its own, emptied for each episode, and
downloads are copied into it from a store that all share.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from arpo_verl.environments.osworld.downloads import DownloadStore, downloads_of
from arpo_verl.errors import TaskError
from arpo_verl.files import ScratchFolder
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
        # Those of killed workers go: task files are large.
        self._scratch = ScratchFolder(Path(tempfile.gettempdir()), PREFIX, f"{name}-")
        self.folder = self._scratch.path

    def begin(self, task: Task) -> None:
        """Empty the folder and bring in all that `task` downloads, so that the client downloads nothing itself.

        What the evaluator will compare with comes now too: an episode whose verdict could not be had is not played.

        Raises:
            DesktopSetupError: a download cannot be had.
            TaskError: the task's id leads out of the folder.
        """
        for child in self.folder.iterdir():
            if child.is_dir():  # not the folder's lock
                shutil.rmtree(child, ignore_errors=True)
        if task.task_id in ("", "..") or Path(task.task_id).name != task.task_id:
            raise TaskError(f"a task's id must be a name that a folder may have, got {task.task_id!r}")
        folder = self.folder / task.task_id
        folder.mkdir()
        for download in downloads_of(task.spec):
            self._store.copy(task.task_id, download, folder / download.name)

    def remove(self) -> None:
        """Delete the desktop's folder; the store stays."""
        self._scratch.remove()


def default_store() -> Path:
    """`$XDG_CACHE_HOME/arpo_verl/downloads`, by default under `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "arpo_verl" / "downloads"
