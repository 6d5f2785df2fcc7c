"""Reads the episodes below `trajectories/` while the trainer writes, and reads only what changed."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

from arpo_verl.records.layout import EPISODE_FILE
from arpo_verl.records.listing import StepListings
from arpo_verl.records.summaries import EpisodeSummary, read_summary

_RECHECKED = 500
"""How many known episodes each call checks again, so that later changes to them appear after a while."""


class StepFolders:
    """The episodes below a trajectories folder, by id. Not thread-safe: its `Run` locks."""

    def __init__(self, root: Path):
        self.root = root
        self.listings = StepListings(root)
        self.episodes: dict[str, EpisodeSummary] = {}
        self.broken: dict[str, str] = {}
        """What is wrong with each folder that is not readable as an episode, by id."""
        self._listed_anew: set[str] = set()
        """Step folders with a new listing whose episodes we have not read yet."""
        self._taken_in: dict[str, set[str]] = defaultdict(set)
        self._seen: dict[str, tuple[int, ...]] = {}
        """The folder's signature at its last reading, by id, the longest unchecked first."""

    def list_folders(self) -> None:
        """List the step folders again, and the episodes in those that changed."""
        self._listed_anew |= self.listings.refresh()

    def refresh(self) -> bool:
        """Read new and replaced episodes, and drop removed ones; return whether there were any."""
        self.list_folders()
        changed = False
        for step in self._listed_anew:
            finished = {f"{step}/{name}" for name in self.listings.by_name[step].finished}
            gone = self._taken_in[step] - finished
            for episode_id in gone:
                self._forget(episode_id)
            read = [self._look_at(episode_id) for episode_id in finished]
            changed = changed or bool(gone) or any(read)
            self._taken_in[step] = finished
        self._listed_anew.clear()
        rechecked = [self._look_at(episode_id) for episode_id in list(itertools.islice(self._seen, _RECHECKED))]
        return changed or any(rechecked)

    def _look_at(self, episode_id: str) -> bool:
        folder = self.root / episode_id
        signature = _signature(folder)
        is_known = self._seen.pop(episode_id, None) == signature
        self._seen[episode_id] = signature  # at the end, since we checked it last
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


def _signature(folder: Path) -> tuple[int, ...]:
    """Return a signature that changes if the folder is replaced, loses a screenshot, or gets a new `episode.json`."""
    try:
        place, file = folder.stat(), (folder / EPISODE_FILE).stat()
    except OSError:
        return ()
    return place.st_ino, place.st_mtime_ns, file.st_mtime_ns, file.st_size
