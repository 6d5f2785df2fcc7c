"""Limits the size of a run's records on disk: old steps lose screenshots to make room for new ones.

The recorder enforces it, so that it works with any trainer and sampler, and on every node's own disk.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.lib.file_lock import FileLock, LockedError, NoLocksError
from arpo_verl.records.episode_file import read_episode
from arpo_verl.records.layout import is_screenshot, step_of
from arpo_verl.records.listing import StepListings

logger = logging.getLogger(__name__)


class BudgetKeeper:
    """Enforces the limit in the background, in one of the processes that record into a folder.

    That is the process with the folder's lock; the kernel frees the lock when the process ends, and the next one that
    records takes over. If the file system has no locks, all of them enforce it, and remove the same screenshots.

    Args:
        directory, limit_bytes: as for `ScreenshotBudget`.
    """

    def __init__(self, directory: Path, limit_bytes: int):
        self._directory = directory
        self._budget = ScreenshotBudget(directory, limit_bytes)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="arpo_verl-budget")
        self._lock: FileLock | None = None
        self._asked = threading.Event()

    def recorded(self, step: int) -> None:
        """Note that an episode of this training step is in its place, and return at once."""
        if not self._asked.is_set():  # a check that is still waiting will see this episode too
            self._asked.set()
            self._thread.submit(self._keep, step)

    def wait(self) -> None:
        """Wait until all checks so far are done."""
        self._thread.submit(lambda: None).result()

    def _keep(self, step: int) -> None:
        self._asked.clear()
        try:
            if self._is_mine():
                self._budget.enforce(step)
        except Exception:  # nobody would see a thread's errors
            logger.exception("could not enforce gui_agent.trajectory_budget_bytes in %s", self._directory)

    def _is_mine(self) -> bool:
        if self._lock is None:
            try:
                self._lock = FileLock(self._directory)
            except LockedError:
                return False
            except NoLocksError:
                return True
        return True


@functools.cache
def budget_keeper(directory: Path, limit_bytes: int) -> BudgetKeeper:
    """Return this process's keeper of the folder."""
    return BudgetKeeper(directory, limit_bytes)


@dataclass
class _RecordedEpisode:
    path: str
    modified_ns: int
    """The folder's time stamp at the measurement: screenshots may come back."""
    screenshot_bytes: int
    other_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.screenshot_bytes + self.other_bytes


class ScreenshotBudget:
    """Keeps the records below a folder within a limit. Use it in one thread; others may only add episodes.

    It reads nothing twice: a call lists the step folders, and reads those that changed.

    Args:
        directory: the folder with a folder `step_000012` for each step.
        limit_bytes: most bytes of all files of finished episodes.
    """

    def __init__(self, directory: Path, limit_bytes: int):
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._listings = StepListings(directory)
        self._steps: dict[str, dict[str, _RecordedEpisode]] = {}
        """Episodes by the name of their step's folder, then of their own."""
        self._complained = False

    def enforce(self, running_step: int) -> int:
        """Remove screenshots of steps before `running_step` until the limit holds, validations last; return their
        bytes. The running step's records may exceed the limit until the next call.

        Raises:
            OSError: the files cannot be read or removed.
        """
        self._look()
        excess = (
            sum(episode.num_bytes for step in self._steps.values() for episode in step.values()) - self._limit_bytes
        )
        removed = 0
        for episode in self._removable(running_step) if excess > 0 else ():
            removed += _remove_screenshots(episode)
            if removed >= excess:
                break
        if removed < excess and not self._complained:
            self._complained = True
            logger.warning(
                "the episodes in %s take %d bytes more than gui_agent.trajectory_budget_bytes=%d, and earlier steps "
                "have no screenshots left to remove; set gui_agent.record_share to record only a share of them",
                *(self._directory, excess - removed, self._limit_bytes),
            )
        return removed

    def _removable(self, running_step: int) -> Iterator[_RecordedEpisode]:
        """Yield the episodes with screenshots, in the order in which they lose them."""
        earlier = [self._steps[name] for name in self._listings.names if (step_of(name) or 0) < running_step]
        episodes = [e for step in earlier for _, e in sorted(step.items()) if e.screenshot_bytes]
        validations = []
        for episode in episodes:
            if _is_validation(episode):
                validations.append(episode)
            else:
                yield episode
        yield from validations

    def _look(self) -> None:
        listed_anew = self._listings.refresh()
        for name, listing in self._listings.by_name.items():
            known = self._steps.get(name)
            if known is None or name in listed_anew:
                folder = self._directory / name
                self._steps[name] = {
                    episode: _measure_anew(str(folder / episode), (known or {}).get(episode))
                    for episode in listing.finished
                }


def _measure_anew(path: str, known: _RecordedEpisode | None) -> _RecordedEpisode:
    return known if known is not None and os.stat(path).st_mtime_ns == known.modified_ns else _measure(path)


def _measure(path: str) -> _RecordedEpisode:
    episode = _RecordedEpisode(path, os.stat(path).st_mtime_ns, 0, 0)
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
        return read_episode(Path(episode.path)).validation is True
    except (OSError, ValueError):
        return False


def _remove_screenshots(episode: _RecordedEpisode) -> int:
    for name in os.listdir(episode.path):
        if is_screenshot(name):
            with contextlib.suppress(FileNotFoundError):  # without locks, another keeper may have removed it
                os.unlink(os.path.join(episode.path, name))
    removed, episode.screenshot_bytes = episode.screenshot_bytes, 0
    return removed
