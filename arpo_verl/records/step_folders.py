"""The episodes below `trajectories/`, read again while the trainer writes: only what changed is read."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

from arpo_verl.records.layout import EPISODE_FILE
from arpo_verl.records.listing import StepListings
from arpo_verl.records.summaries import EpisodeSummary, read_summary

_RECHECKED = 500
"""How many episodes known before are looked at again each time: what is done to them later shows a little later."""


class StepFolders:
    """The episodes below one trajectories folder, by id. Not thread-safe: its `Run` locks."""

    def __init__(self, root: Path):
        self.root = root
        self.listings = StepListings(root)
        self.episodes: dict[str, EpisodeSummary] = {}
        self.broken: dict[str, str] = {}
        """Id to what is wrong, for each folder that could not be read as an episode."""
        self._listed_anew: set[str] = set()
        """Step folders that were since they were taken in."""
        self._taken_in: dict[str, set[str]] = defaultdict(set)
        self._seen: dict[str, tuple[int, ...]] = {}
        """Id to the folder's signature when it was read, the longest unchecked first."""

    def list_folders(self) -> None:
        """List the step folders anew, and the episodes in those that changed."""
        self._listed_anew |= self.listings.refresh()

    def refresh(self) -> bool:
        """Read the episodes that are new or were replaced, drop those that are gone. True where any was."""
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


def _signature(folder: Path) -> tuple[int, ...]:
    """Differs where the folder was replaced, lost a screenshot, or had its `episode.json` written anew."""
    try:
        place, file = folder.stat(), (folder / EPISODE_FILE).stat()
    except OSError:
        return ()
    return place.st_ino, place.st_mtime_ns, file.st_mtime_ns, file.st_size
