"""This lists the runs in a folder, and opens each one on its first use."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from arpo_verl.records.run import Run, is_run, open_run

_KEPT_OPEN = 4
"""Number of runs whose episodes stay in memory; other runs are read again when they are opened."""


class RunsFolder:
    """These are the runs directly below a folder, by name. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Run] = OrderedDict()

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

    def holds(self, run: Run) -> bool:
        """Return whether a run is still open."""
        return run in self._open.values()

    def run(self, name: str) -> Run:
        """Return the run with this name.

        Raises:
            KeyError: there is no such run. Names come from outside.
        """
        if name not in self.names():
            raise KeyError(name)
        with self._lock:
            if name not in self._open:
                self._open[name] = open_run(self.path / name)
            self._open.move_to_end(name)
            while len(self._open) > _KEPT_OPEN:
                self._open.popitem(last=False)
            return self._open[name]
