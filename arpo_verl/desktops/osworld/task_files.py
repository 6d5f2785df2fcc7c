"""Give each desktop its own folder for the client, with its task's downloads.

The client keeps its downloads, and what its getters fetch from the guest, in `<folder>/<task_id>/`. It takes any file
there for a whole one, and uses no locks. Two desktops with one folder would race, and an earlier episode's file could
be evaluated instead of this one's. So each desktop has its own folder, which we empty for each episode, and downloads
are copied into it from a store that all share: one of all processes of a host fetches a file, whole or not at all.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from filelock import FileLock, Timeout

from arpo_verl.errors import DesktopSetupError, TaskError
from arpo_verl.lib.files import ScratchFolder
from arpo_verl.types import Task

logger = logging.getLogger(__name__)

PREFIX = "arpo_verl-"
ATTEMPTS = 3
"""Attempts of a download, as many as OSWorld's client makes."""
RETRY_S = 1.0
STALL_S = 60.0
"""An attempt fails if the server sends nothing for so long."""
LOCK_S = 1800.0
"""How long a process waits for another's download: a few GB over a slow line."""


class TaskFiles:
    """One desktop's folder; threads must not share it.

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


@dataclass(frozen=True)
class Download:
    """A file of a task, and the name by which OSWorld's client looks for it in the task's folder."""

    url: str
    name: str


def downloads_of(spec: Mapping[str, Any]) -> list[Download]:
    """Return what a task's set-up and evaluator download, each once."""
    found = [*_of_steps(steps_of(spec)), *_of_getters(getters_of(spec))]
    # The client keeps files with other names outside of the task's folder, so they are not ours.
    return [one for one in dict.fromkeys(found) if one.name and "/" not in one.name and one.name not in (".", "..")]


def steps_of(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the steps of a task's set-up and of its evaluator's `postconfig`."""
    return [*spec.get("config", []), *spec.get("evaluator", {}).get("postconfig", [])]


def getters_of(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the getters of a task's evaluator: its `result` and `expected`, as a list."""
    parts = [spec.get("evaluator", {}).get(key) or [] for key in ("result", "expected")]
    return [getter for part in parts for getter in (part if isinstance(part, list) else [part]) if getter]


def _of_steps(steps: list[Mapping[str, Any]]) -> Iterator[Download]:
    for step in steps:
        if step["type"] == "download":
            for file in step["parameters"].get("files", []):
                # As in SetupController._download_setup.
                name = f"{uuid.uuid5(uuid.NAMESPACE_URL, file['url'])}_{os.path.basename(file['path'])}"
                yield Download(file["url"], name)


def _of_getters(getters: list[dict[str, Any]]) -> Iterator[Download]:
    for getter in getters:
        if getter.get("type") == "cloud_file":
            urls, names = getter["path"], getter["dest"]
            pairs = zip(urls, names, strict=False) if isinstance(names, list) else [(urls, names)]
            yield from (Download(url, name) for url, name in pairs)


class DownloadStore:
    """A folder of finished downloads, `<task_id>/<hash of the URL>_<name>`, which desktops, processes and runs share.

    If desktops have no internet, you can also put the files there by hand.

    Args:
        folder: created with its first file. On a disk that hosts share, two hosts may fetch the same file at once; each
            renames its own complete copy into place.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, task_id: str, download: Download) -> Path:
        """Return the file's place in the store, whether it is there or not. A task's new URL gets a new place."""
        address = uuid.uuid5(uuid.NAMESPACE_URL, download.url)
        return self.folder / task_id / f"{address}_{download.name.removeprefix(f'{address}_')}"

    def copy(self, task_id: str, download: Download, target: Path) -> None:
        """Copy the file to `target`, after fetching it if it is not here.

        It copies, because a metric may open its files for writing.

        Raises:
            DesktopSetupError: the download failed.
        """
        kept = self.path(task_id, download)
        if not kept.is_file():
            self._fetch(download.url, kept)
        shutil.copyfile(kept, target)

    def _fetch(self, url: str, kept: Path) -> None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The kernel gives the lock back when its holder dies, however it dies.
            with FileLock(kept.with_name(f".{kept.name}.lock"), timeout=LOCK_S):
                if not kept.is_file():  # another may have fetched it meanwhile
                    _download(url, kept)
        except Timeout as error:
            raise DesktopSetupError(
                f"another process has been downloading {_without_secrets(url)} for more than {LOCK_S:g} s. Check "
                f"whether it hangs, or put the file at {kept} yourself"
            ) from error
        except NotImplementedError as error:
            raise DesktopSetupError(
                f"the file system of {self.folder} has no locks, so desktops cannot share task files there; set "
                "environment.cache_dir to a folder on a local disk"
            ) from error


def _download(url: str, kept: Path) -> None:
    """Fetch into this host's own temporary file, then rename it: a killed download never looks like the whole file."""
    part = kept.with_name(f".{kept.name}.{socket.gethostname()}.part")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _write(url, part)
            os.replace(part, kept)
            return
        except requests.RequestException as error:
            why, shown = _without_secrets(str(error)), _without_secrets(url)
            logger.warning("download of %s failed, attempt %d of %d: %s", shown, attempt, ATTEMPTS, why)
            part.unlink(missing_ok=True)
            if attempt == ATTEMPTS:
                raise DesktopSetupError(
                    f"{shown} could not be downloaded: {why}; give this machine access to it, or put the file at {kept}"
                ) from None  # its own words have the whole address, with secrets
            time.sleep(RETRY_S)


def _without_secrets(text: str) -> str:
    """Remove from a text's addresses the user's name and password, and the part after `?`, which may sign it."""
    return re.sub(r"(https?://)(?:[^/\s@]+@)?([^\s?]+)(?:\?\S*)?", r"\1\2", text)


def _write(url: str, part: Path) -> None:
    with requests.get(url, stream=True, timeout=STALL_S) as response, part.open("wb") as file:
        response.raise_for_status()
        # A connection that ends before Content-Length raises, by urllib3.
        for chunk in response.iter_content(chunk_size=1 << 20):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
