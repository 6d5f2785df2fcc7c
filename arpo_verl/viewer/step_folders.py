"""The folders below `trajectories/`, looked through again while the trainer writes: only what changed is read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arpo_verl.viewer.episodes import EPISODE_FILE, EpisodeSummary, read_summary, step_of

# A change within a file system's time stamp step after a scan would not show in the folder's time: scan once more.
_CLOCK_STEP_NS = 2_000_000_000


@dataclass
class _Listing:
    modified_ns: int = -1
    finished: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


class StepFolders:
    """The episodes below one trajectories folder, by id. Not thread-safe: its `Run` locks."""

    def __init__(self, root: Path):
        self.root = root
        self.episodes: dict[str, EpisodeSummary] = {}
        self.broken: dict[str, str] = {}
        """Id to what is wrong, for each folder that could not be read as an episode."""
        self._steps: dict[str, _Listing] = {}
        self._seen: dict[str, tuple[int, ...]] = {}

    @property
    def steps(self) -> list[str]:
        """The names of the step folders, oldest first."""
        return sorted(self._steps, key=lambda name: (step_of(name) or 0, name))

    def unfinished(self) -> Iterator[Path]:
        """The folders of episodes that are being played, as of the last `list_folders`."""
        for step in self.steps:
            yield from (self.root / step / name for name in self._steps[step].unfinished)

    def list_folders(self) -> None:
        """List the step folders anew, and the episodes in those that changed."""
        try:
            with os.scandir(self.root) as entries:
                names = {entry.name for entry in entries if step_of(entry.name) is not None and entry.is_dir()}
        except FileNotFoundError:
            names = set()
        self._steps = {name: self._steps.get(name, _Listing()) for name in names}
        for name, listing in self._steps.items():
            _list_step(self.root / name, listing)

    def refresh(self) -> bool:
        """Read the episodes that are new or were replaced, drop those that are gone. True where any was."""
        self.list_folders()
        present = {f"{step}/{name}" for step, listing in self._steps.items() for name in listing.finished}
        gone = self._seen.keys() - present
        for episode_id in gone:
            self._forget(episode_id)
        changed = [self._look_at(episode_id) for episode_id in present]
        return bool(gone) or any(changed)

    def _look_at(self, episode_id: str) -> bool:
        folder = self.root / episode_id
        signature = _signature(folder)
        if self._seen.get(episode_id) == signature:
            return False
        self._forget(episode_id)
        self._seen[episode_id] = signature
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
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return
    listing.finished = sorted(name for name in names if not name.startswith("."))
    listing.unfinished = sorted(name for name in names if name.startswith("."))
    settled = time.time_ns() - modified_ns > _CLOCK_STEP_NS
    listing.modified_ns = modified_ns if settled else -1


def _signature(folder: Path) -> tuple[int, ...]:
    """Differs where the folder was replaced, lost a screenshot, or had its `episode.json` written anew."""
    try:
        own, file = folder.stat(), (folder / EPISODE_FILE).stat()
    except OSError:
        return ()
    return own.st_ino, own.st_mtime_ns, file.st_mtime_ns, file.st_size
