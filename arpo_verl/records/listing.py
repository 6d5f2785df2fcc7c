"""Lists the folders below `trajectories/` while others write there, and looks only at what changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arpo_verl.records.layout import HIDDEN, step_of

# A change soon after a look may not change the folder's time, since file systems round it: so look once more.
_CLOCK_STEP_NS = 2_000_000_000


@dataclass
class StepListing:
    """The names of one step's episode folders."""

    finished: set[str] = field(default_factory=set)
    unfinished: list[str] = field(default_factory=list)
    modified_ns: int = -1
    """The folder's time stamp when we listed it; -1 if we must list it again."""


class StepListings:
    """The step folders below a folder, by name; a removed one stays, empty. Not thread-safe."""

    def __init__(self, root: Path):
        self.root = root
        self.by_name: dict[str, StepListing] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of the step folders, oldest first."""
        return sorted(self.by_name, key=lambda name: (step_of(name) or 0, name))

    def unfinished(self) -> Iterator[Path]:
        """Yield the folders of episodes that were being played at the last `refresh`."""
        for step in self.names:
            yield from (self.root / step / name for name in self.by_name[step].unfinished)

    def refresh(self) -> set[str]:
        """List what changed; return the names of those step folders."""
        try:
            names = {name for name in _folders_in(self.root) if step_of(name) is not None}
        except FileNotFoundError:
            names = set()
        except OSError:  # a network disk may fail for a while: keep the last listing
            names = set(self.by_name)
        return {
            name
            for name in names | self.by_name.keys()
            if _list_step(self.root / name, self.by_name.setdefault(name, StepListing()))
        }


def _list_step(folder: Path, listing: StepListing) -> bool:
    """List a step's folder if it changed; return whether it did."""
    try:
        modified_ns = folder.stat().st_mtime_ns
        if modified_ns == listing.modified_ns:
            return False
        names = _folders_in(folder)
    except FileNotFoundError:
        modified_ns, names = 0, []
    except OSError:
        return False
    listing.finished = {name for name in names if not name.startswith(HIDDEN)}
    listing.unfinished = sorted(name for name in names if name.startswith(HIDDEN))
    settled = time.time_ns() - modified_ns > _CLOCK_STEP_NS
    listing.modified_ns = modified_ns if settled else -1
    return True


def _folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, without links, which could lead out of the run."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
