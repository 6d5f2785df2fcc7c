"""The bound of what a run's records take on disk: screenshots of old steps make room for new ones."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arpo_verl.records.episode_folder import EPISODE_FILE, is_screenshot

logger = logging.getLogger(__name__)

_CLOCK_STEP_NS = 2_000_000_000
"""A change so soon after another may leave a folder's time stamp as it was: such a folder is looked at once more."""


@dataclass
class _RecordedEpisode:
    path: str
    screenshot_bytes: int
    other_bytes: int


@dataclass
class _RecordedStep:
    episodes: dict[str, _RecordedEpisode] = field(default_factory=dict)
    modified_ns: int = -1
    """The folder's time stamp when it was looked at; -1 where that must be done again."""

    @property
    def num_bytes(self) -> int:
        return sum(episode.screenshot_bytes + episode.other_bytes for episode in self.episodes.values())


class ScreenshotBudget:
    """Keeps the records below a folder within a bound. For one process and one thread; others only add episodes.

    What it has seen it does not look at again: a call lists the step folders, and reads those that changed.

    Args:
        directory: with a folder `step_000012` for each step.
        limit_bytes: of all files of finished episodes.
    """

    def __init__(self, directory: Path, limit_bytes: int):
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._steps: dict[int, _RecordedStep] = {}
        self._complained = False

    def enforce(self, running_step: int) -> int:
        """Remove screenshots of steps before `running_step` until the bound holds, those of validations last; returns
        how many bytes. What the running step records may exceed the bound until the next call.

        Raises:
            OSError: the disk refuses.
        """
        self._look()
        excess = sum(step.num_bytes for step in self._steps.values()) - self._limit_bytes
        removed = 0
        for episode in self._removable(running_step) if excess > 0 else ():
            removed += _remove_screenshots(episode)
            if removed >= excess:
                break
        if removed < excess and not self._complained:
            self._complained = True
            logger.warning(
                "the episodes below %s take %d bytes more than gui_agent.trajectory_budget_bytes=%d, and earlier "
                "steps have no screenshots left to remove; record a share of them with gui_agent.record_share",
                *(self._directory, excess - removed, self._limit_bytes),
            )
        return removed

    def changed(self, step: int) -> None:
        """Say that an episode of this step was written to after it was finished."""
        self._steps.pop(step, None)

    def _removable(self, running_step: int) -> Iterator[_RecordedEpisode]:
        """The episodes that have screenshots, in the order in which they lose them."""
        earlier = [self._steps[step] for step in sorted(self._steps) if step < running_step]
        episodes = [e for step in earlier for _, e in sorted(step.episodes.items()) if e.screenshot_bytes]
        validations = []
        for episode in episodes:
            if _is_validation(episode):
                validations.append(episode)
            else:
                yield episode
        yield from validations

    def _look(self) -> None:
        found = set()
        with os.scandir(self._directory) as entries:
            for entry in entries:
                match = re.fullmatch(r"step_(\d+)", entry.name)
                if match is not None and entry.is_dir():
                    found.add(int(match[1]))
                    self._look_at(self._steps.setdefault(int(match[1]), _RecordedStep()), entry)
        self._steps = {number: step for number, step in self._steps.items() if number in found}

    def _look_at(self, step: _RecordedStep, folder: os.DirEntry[str]) -> None:
        modified_ns = folder.stat().st_mtime_ns
        if modified_ns == step.modified_ns:
            return
        with os.scandir(folder) as entries:
            finished = {
                entry.name: entry.path for entry in entries if entry.is_dir() and not entry.name.startswith(".")
            }
        step.episodes = {name: step.episodes.get(name) or _measure(path) for name, path in finished.items()}
        step.modified_ns = modified_ns if time.time_ns() - modified_ns > _CLOCK_STEP_NS else -1


def _measure(path: str) -> _RecordedEpisode:
    episode = _RecordedEpisode(path, 0, 0)
    with os.scandir(path) as entries:
        for entry in entries:
            size = entry.stat().st_size
            if is_screenshot(entry.name):
                episode.screenshot_bytes += size
            else:
                episode.other_bytes += size
    return episode


def _is_validation(episode: _RecordedEpisode) -> bool:
    try:
        return json.loads(Path(episode.path, EPISODE_FILE).read_bytes()).get("validation") is True
    except (OSError, ValueError):
        return False


def _remove_screenshots(episode: _RecordedEpisode) -> int:
    for name in os.listdir(episode.path):
        if is_screenshot(name):
            os.unlink(os.path.join(episode.path, name))
    removed, episode.screenshot_bytes = episode.screenshot_bytes, 0
    return removed
