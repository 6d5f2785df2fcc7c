"""The bound of what a run's records take on disk: screenshots of old steps make room for new ones.

The recorder keeps it, so that it holds with any trainer and sampler, and on every node's own disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.records.layout import is_screenshot, read_episode, step_of
from arpo_verl.records.listing import StepListings

logger = logging.getLogger(__name__)


class BudgetKeeper:
    """Has the bound kept in the background, by one process of those that record into a folder.

    The one that holds the folder's lock keeps it; the kernel drops the lock with the process, and the next that records
    takes over. Where the file system has no locks all of them keep it: they remove the same screenshots.

    Args:
        directory: as `ScreenshotBudget`, as the other.
    """

    def __init__(self, directory: Path, limit_bytes: int):
        self._directory = directory
        self._budget = ScreenshotBudget(directory, limit_bytes)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="arpo_verl-budget")
        self._lock: int | None = None
        self._asked = threading.Event()

    def recorded(self, step: int) -> None:
        """An episode of this training step is in its place. Returns at once."""
        if not self._asked.is_set():  # one that waits its turn will see this episode too
            self._asked.set()
            self._thread.submit(self._keep, step)

    def wait(self) -> None:
        """Wait until what was asked for so far is done."""
        self._thread.submit(lambda: None).result()

    def _keep(self, step: int) -> None:
        self._asked.clear()
        try:
            if self._is_mine():
                self._budget.enforce(step)
        except Exception:  # a thread's errors would be seen by nobody
            logger.exception("gui_agent.trajectory_budget_bytes could not be kept below %s", self._directory)

    def _is_mine(self) -> bool:
        if self._lock is None:
            lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            except OSError:
                logger.debug("%s has no locks", self._directory, exc_info=True)
            self._lock = lock
        return True


@functools.cache
def budget_keeper(directory: Path, limit_bytes: int) -> BudgetKeeper:
    """This process's keeper of the folder."""
    return BudgetKeeper(directory, limit_bytes)


@dataclass
class _RecordedEpisode:
    path: str
    modified_ns: int
    """The folder's time stamp when it was measured: screenshots may come back."""
    screenshot_bytes: int
    other_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.screenshot_bytes + self.other_bytes


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
        self._listings = StepListings(directory)
        self._steps: dict[str, dict[str, _RecordedEpisode]] = {}
        """By the name of the step's folder, then of its own."""
        self._complained = False

    def enforce(self, running_step: int) -> int:
        """Remove screenshots of steps before `running_step` until the bound holds, those of validations last; returns
        how many bytes. What the running step records may exceed the bound until the next call.

        Raises:
            OSError: the disk refuses.
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
                "the episodes below %s take %d bytes more than gui_agent.trajectory_budget_bytes=%d, and earlier "
                "steps have no screenshots left to remove; record a share of them with gui_agent.record_share",
                *(self._directory, excess - removed, self._limit_bytes),
            )
        return removed

    def _removable(self, running_step: int) -> Iterator[_RecordedEpisode]:
        """The episodes that have screenshots, in the order in which they lose them."""
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
        return read_episode(Path(episode.path)).get("validation") is True
    except (OSError, ValueError):
        return False


def _remove_screenshots(episode: _RecordedEpisode) -> int:
    for name in os.listdir(episode.path):
        if is_screenshot(name):
            with contextlib.suppress(FileNotFoundError):  # another keeper's, where there are no locks
                os.unlink(os.path.join(episode.path, name))
    removed, episode.screenshot_bytes = episode.screenshot_bytes, 0
    return removed
