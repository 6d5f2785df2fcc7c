"""The folders below `trajectories/`, looked through again while the trainer writes: only what changed is read."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arpo_verl.records.summaries import EPISODE_FILE, EpisodeSummary, read_summary, step_of

# A change within a file system's time stamp step after a scan would not show in the folder's time: scan once more.
_CLOCK_STEP_NS = 2_000_000_000


_RECHECKED = 500
"""How many episodes known before are looked at again each time: what is done to them later shows a little later."""


@dataclass
class _Listing:
    """The episode folders of one step, by id."""

    modified_ns: int = -1
    finished: set[str] = field(default_factory=set)
    unfinished: list[str] = field(default_factory=list)
    taken_in: set[str] = field(default_factory=set)
    is_new: bool = False
    """Whether it was listed anew since it was taken in."""


class StepFolders:
    """The episodes below one trajectories folder, by id. Not thread-safe: its `Run` locks."""

    def __init__(self, root: Path):
        self.root = root
        self.episodes: dict[str, EpisodeSummary] = {}
        self.broken: dict[str, str] = {}
        """Id to what is wrong, for each folder that could not be read as an episode."""
        self._steps: dict[str, _Listing] = {}
        self._seen: dict[str, tuple[int, ...]] = {}
        """Id to the folder's signature when it was read, the longest unchecked first."""

    @property
    def steps(self) -> list[str]:
        """The names of the step folders, oldest first."""
        return sorted(self._steps, key=lambda name: (step_of(name) or 0, name))

    def unfinished(self) -> Iterator[Path]:
        """The folders of episodes that are being played, as of the last `list_folders`."""
        for step in self.steps:
            yield from (self.root / id for id in self._steps[step].unfinished)

    def list_folders(self) -> None:
        """List the step folders anew, and the episodes in those that changed."""
        try:
            names = {name for name in _folders_in(self.root) if step_of(name) is not None}
        except FileNotFoundError:
            names = set()
        except OSError:  # a network disk may fail for a while: what was seen stands
            names = set(self._steps)
        for name in names | self._steps.keys():
            _list_step(self.root / name, self._steps.setdefault(name, _Listing()))

    def refresh(self) -> bool:
        """Read the episodes that are new or were replaced, drop those that are gone. True where any was."""
        self.list_folders()
        changed = False
        for listing in self._steps.values():
            if listing.is_new:
                gone = listing.taken_in - listing.finished
                for episode_id in gone:
                    self._forget(episode_id)
                read = [self._look_at(episode_id) for episode_id in listing.finished]
                changed = changed or bool(gone) or any(read)
                listing.taken_in, listing.is_new = listing.finished, False
        rechecked = [self._look_at(episode_id) for episode_id in list(itertools.islice(self._seen, _RECHECKED))]
        return changed or any(rechecked)

    def _look_at(self, episode_id: str) -> bool:
        folder = self.root / episode_id
        signature = _signature(folder)
        is_known = self._seen.pop(episode_id, None) == signature
        self._seen[episode_id] = signature  # at the end: it was checked last
        if is_known:
            return False
        self.episodes.pop(episode_id, None)
        self.broken.pop(episode_id, None)
        try:
            self.episodes[episode_id] = read_summary(folder)
        except (OSError, ValueError) as error:
            self.broken[episode_id] = f"{type(error).__name__}: {error}"[:300]
        return True

    def _forget(self, episode_id: str) -> None:
        self._seen.pop(episode_id, None)
        self.episodes.pop(episode_id, None)
        self.broken.pop(episode_id, None)


def _list_step(folder: Path, listing: _Listing) -> None:
    try:
        modified_ns = folder.stat().st_mtime_ns
        if modified_ns == listing.modified_ns:
            return
        names = _folders_in(folder)
    except FileNotFoundError:
        modified_ns, names = 0, []
    except OSError:
        return
    listing.finished = {f"{folder.name}/{name}" for name in names if not name.startswith(".")}
    listing.unfinished = sorted(f"{folder.name}/{name}" for name in names if name.startswith("."))
    settled = time.time_ns() - modified_ns > _CLOCK_STEP_NS
    listing.modified_ns = modified_ns if settled else -1
    listing.is_new = True


def _folders_in(folder: Path) -> list[str]:
    """The names of the folders in a folder; no links, which could lead out of the run."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _signature(folder: Path) -> tuple[int, ...]:
    """Differs where the folder was replaced, lost a screenshot, or had its `episode.json` written anew."""
    try:
        own, file = folder.stat(), (folder / EPISODE_FILE).stat()
    except OSError:
        return ()
    return own.st_ino, own.st_mtime_ns, file.st_mtime_ns, file.st_size
