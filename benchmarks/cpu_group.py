"""Processors' time of a process and of all that it starts, dead or alive, wherever their parents went."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

HIERARCHY = "/sys/fs/cgroup/cpuacct"
"""Of version 1: version 2 has no place for a group beside those that desktops make for themselves."""


class CpuGroup:
    """A control group that counts. Whoever makes it is root."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=HIERARCHY, prefix="benchmark-"))

    def admit(self, pid: int) -> None:
        """Count this process, and what it starts from now on."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def seconds(self) -> float:
        """What all of them took so far."""
        return int((self._folder / "cpuacct.usage").read_text()) / 1e9

    def process_ids(self) -> list[int]:
        """Those that live."""
        return [int(line) for line in (self._folder / "cgroup.procs").read_text().split()]

    def close(self) -> None:
        """Wait until its processes have ended, and remove it."""
        while self.process_ids():
            time.sleep(0.05)
        self._folder.rmdir()
