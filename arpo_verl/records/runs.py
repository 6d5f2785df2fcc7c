"""Lists the runs in a folder, and opens each one on its first use."""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path

from arpo_verl.records.run import Run, is_run, open_run

KEPT_OPEN = 4
"""Number of runs whose episodes stay in memory; other runs are read again when they are opened."""


class RunsFolder:
    """The runs directly below a folder, by name. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._open = functools.lru_cache(KEPT_OPEN)(open_run)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def names(self) -> list[str]:
        """Return the names of the runs, in order, without links, which could lead out of the folder."""
        try:
            with os.scandir(self.path) as entries:
                folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        return sorted(name for name in folders if is_run(self.path / name))

    def run(self, name: str) -> Run:
        """Return the run with this name.

        Raises:
            KeyError: there is no such run. Names come from outside.
        """
        if name not in self.names():
            raise KeyError(name)
        with self._lock:
            return self._open(self.path / name)
