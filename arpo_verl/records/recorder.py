"""Records episodes as they happen: threads write the files in order, and an episode waits for them only at its
end."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from arpo_verl.agent.rollout.config import FAILURES_AND_REPLAYS, GuiAgentConfig
from arpo_verl.agent.rollout.episode import Episode, Turn
from arpo_verl.agent.rollout.scoring import Score
from arpo_verl.records.budget import BudgetKeeper, budget_keeper
from arpo_verl.records.documents import EpisodeRecord, folder_of, id_of_row, live_document
from arpo_verl.records.episode_folder import EpisodeFolder
from arpo_verl.types import Task

logger = logging.getLogger(__name__)

FINISH_TIMEOUT_S = 60.0
"""How long the end of an episode waits for its record: a network disk may hang instead of failing."""

# Separate threads, so that a slow disk does not delay the decoding of screenshots. An episode uses one of them, which
# keeps its writes in order: waiting for each write in the event loop would cost more than the writes.
_THREADS = itertools.cycle([ThreadPoolExecutor(1, thread_name_prefix="arpo_verl-recorder") for _ in range(4)])


class Recorder:
    """Opens a writer for each episode.

    Args:
        is_validation: returns whether a prompt's uid is a validation's; None if that is not known.
    """

    def __init__(self, config: GuiAgentConfig, is_validation: Callable[[str], Awaitable[bool | None]]):
        self.is_validation = is_validation
        self._directory = None if config.recorded_in is None else Path(config.recorded_in)
        self._share = config.record_share
        self.keeper: BudgetKeeper | None = None
        if self._directory is not None and config.trajectory_budget_bytes is not None:
            self.keeper = budget_keeper(self._directory, config.trajectory_budget_bytes)
        self._drops_successes = config.record == FAILURES_AND_REPLAYS

    def episode(self, row: Mapping[str, Any], task: Task) -> EpisodeWriter:
        """Return a writer for one attempt at an episode of this dataset row; it writes nothing if the episode is not
        to be recorded."""
        is_recorded = draw(id_of_row(row).uid) < self._share
        return EpisodeWriter(self, self._directory if is_recorded else None, row, task)

    def keeps_screenshots(self, episode: Episode) -> bool:
        """Return whether the record of this episode has its screenshots."""
        return not self._drops_successes or episode.success < 1 or episode.format_error


def draw(uid: str) -> float:
    """Return a number in [0, 1), the same for the same uid everywhere."""
    return int.from_bytes(sha256(uid.encode()).digest()[:8], "big") / 2**64


class EpisodeWriter:
    """Writes an attempt's record, as the `Watcher` of its episode. Without `finish`, it removes what it wrote.

    If the disk fails, only the record is lost, not the episode.
    """

    def __init__(self, recorder: Recorder, directory: Path | None, row: Mapping[str, Any], task: Task):
        self._recorder = recorder
        self._row, self._task, self._id = row, task, id_of_row(row)
        self._folder = None if directory is None else EpisodeFolder(directory, folder_of(self._id, task.task_id))
        self._desktop, self._started_at = "", 0.0
        self._thread = next(_THREADS)
        self._failed = False

    async def __aenter__(self) -> EpisodeWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._folder is None:
            return
        done = asyncio.wrap_future(self._thread.submit(self._folder.discard))  # does nothing if it is finished
        # Not `wait_for`, which would cancel it: even a disk that comes back late is cleaned up.
        await asyncio.wait({done}, timeout=FINISH_TIMEOUT_S)
        if done.done():
            done.result()
        else:
            self._failed = True
            logger.error("an episode of task %s was not written within %g s", self._task.task_id, FINISH_TIMEOUT_S)

    def begin(self, desktop: str) -> None:
        """Begin the record: the episode starts on this desktop."""
        self._desktop, self._started_at = desktop, time.time()
        if self._folder is not None:
            self._write(self._folder.open)
            self.replied(())

    def saw(self, screenshot: bytes) -> None:
        """See `Watcher`."""
        if self._folder is not None:
            self._write(self._folder.add_screenshot, screenshot)

    def replied(self, turns: tuple[Turn, ...]) -> None:
        """See `Watcher`."""
        if self._folder is not None:
            self._write(self._write_live, self._folder, turns)

    async def finish(self, episode: Episode, score: Score) -> None:
        """Put the finished folder in its place; it is there at the end of the writer's block."""
        if self._folder is None:
            return
        record = EpisodeRecord.of_row(self._row, episode, score, self._desktop)
        validation = await self._recorder.is_validation(self._id.uid)
        record = dataclasses.replace(record, content={**record.content, "validation": validation})
        self._write(partial(self._folder.finish, record, keep_screenshots=self._recorder.keeps_screenshots(episode)))
        if self._recorder.keeper is not None:
            self._write(self._recorder.keeper.recorded, self._id.step)

    def _write_live(self, folder: EpisodeFolder, turns: tuple[Turn, ...]) -> None:
        folder.write_live(live_document(self._id, self._task, self._desktop, self._started_at, turns))

    def _write(self, write: Callable[..., object], *args: Any) -> None:
        """Write after all earlier writes, unless one failed."""
        self._thread.submit(self._try, write, *args)

    def _try(self, write: Callable[..., object], *args: Any) -> None:
        if self._failed:
            return
        try:
            write(*args)
        except Exception:  # no error of a record may cost an episode
            self._failed = True
            logger.exception("an episode of task %s could not be written", self._task.task_id)
