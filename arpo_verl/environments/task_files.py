"""The client's folder of one desktop, with what tasks download kept for all desktops.

The client keeps what it downloads, and what its getters fetch from the guest, in `<folder>/<task_id>/`. Two desktops
with one folder would race, and what an earlier episode left could be judged in the place of this one's. So each desktop
has a folder of its own, emptied for each episode, and downloads are copied in from a store that all share.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arpo_verl.types import Task


class TaskFiles:
    """One desktop's folder. Not shared between threads.

    Args:
        store: the folder of finished downloads, shared by desktops, processes and runs.
        name: the desktop's.
    """

    def __init__(self, store: Path, name: str):
        self._store = store
        self.folder = Path(tempfile.mkdtemp(prefix=f"arpo_verl-{name}-"))

    def begin(self, task: Task) -> None:
        """Empty the folder and bring in the downloads of `task` that the store has."""
        for child in self.folder.iterdir():
            shutil.rmtree(child, ignore_errors=True)
        folder = self.folder / task.task_id
        folder.mkdir()
        for name in download_names(task.spec):
            kept = self._store / task.task_id / name
            if kept.is_file():
                shutil.copyfile(kept, folder / name)

    def keep(self, task: Task) -> None:
        """Store the downloads of `task` that are new. Only after a call that succeeded: else a file may be a part."""
        for name in download_names(task.spec):
            fresh, kept = self.folder / task.task_id / name, self._store / task.task_id / name
            if fresh.is_file() and not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                part = kept.with_name(f".{uuid.uuid4().hex}")
                shutil.copyfile(fresh, part)
                os.replace(part, kept)

    def remove(self) -> None:
        """Delete the desktop's folder; the store stays."""
        shutil.rmtree(self.folder, ignore_errors=True)


def default_store() -> Path:
    """`$XDG_CACHE_HOME/arpo_verl/downloads`, by default under `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "arpo_verl" / "downloads"


def download_names(spec: Mapping[str, Any]) -> list[str]:
    """The names under which the client keeps what a task's set-up and evaluator download."""
    evaluator = spec.get("evaluator", {})
    names = list(_set_up_names([*spec.get("config", []), *evaluator.get("postconfig", [])]))
    for key in ("result", "expected"):
        part = evaluator.get(key) or []
        names.extend(_cloud_names(part if isinstance(part, list) else [part]))
    return [name for name in names if name and "/" not in name and name not in (".", "..")]


def _set_up_names(steps: list[Mapping[str, Any]]) -> Iterator[str]:
    for step in steps:
        if step["type"] == "download":
            for file in step["parameters"].get("files", []):
                # As in SetupController._download_setup.
                yield f"{uuid.uuid5(uuid.NAMESPACE_URL, file['url'])}_{os.path.basename(file['path'])}"


def _cloud_names(getters: list[Mapping[str, Any] | None]) -> Iterator[str]:
    for getter in getters:
        if getter and getter.get("type") == "cloud_file":
            destinations = getter.get("dest", [])
            yield from destinations if isinstance(destinations, list) else [destinations]
