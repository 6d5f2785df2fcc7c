"""This module gives each desktop its own folder for the client.

The client keeps its downloads, and what its getters fetch from the guest, in `<folder>/<task_id>/`. It takes any file
there for a whole one, and uses no locks. Two desktops with one folder would race, and an earlier episode's file could
be evaluated instead of this one's. So each desktop has its own folder, which we empty for each episode, and downloads
are copied into it from a store that all share.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from arpo_verl.desktops.osworld.downloads import DownloadStore, downloads_of
from arpo_verl.errors import TaskError
from arpo_verl.lib.files import ScratchFolder
from arpo_verl.types import Task

PREFIX = "arpo_verl-"


class TaskFiles:
    """This is one desktop's folder; threads must not share it.

    Args:
        store: the folder of finished downloads.
        name: the desktop's.
    """

    def __init__(self, store: Path, name: str):
        self._store = DownloadStore(store)
        # This also removes the folders of killed workers, since task files are large.
        self._scratch = ScratchFolder(Path(tempfile.gettempdir()), PREFIX, f"{name}-")
        self.folder = self._scratch.path

    def begin(self, task: Task) -> None:
        """Empty the folder and copy in all downloads of `task`, so that the client downloads nothing itself.

        The evaluator's expected files come now too, so that no episode is played that could not be evaluated.

        Raises:
            DesktopSetupError: a download failed.
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
    """Return `$XDG_CACHE_HOME/arpo_verl/downloads`, by default under `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "arpo_verl" / "downloads"
