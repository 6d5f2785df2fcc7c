"""The trainer's own part in recording a run: what only its process knows, and what only one process may do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from arpo_verl.plugin.group_log import GROUP_LOG, LoggedRow
from arpo_verl.records.budget import ScreenshotBudget
from arpo_verl.records.documents import folder_of
from arpo_verl.records.episode_folder import add_missing_screenshots, remove_unfinished
from arpo_verl.records.layout import GROUPS_FILE, step_folder
from arpo_verl.replay.choice import Group
from arpo_verl.replay.store.encoding import as_png
from arpo_verl.replay.trajectory import StoredTrajectory
from arpo_verl.rollout.config import FAILURES_AND_REPLAYS, GuiAgentConfig

logger = logging.getLogger(__name__)


class RunRecords:
    """The records below `gui_agent.trajectory_dir`. Work on the disk is done in the background, in order.

    To be made before the first episode is played: it removes those that a killed run left unfinished.
    """

    def __init__(self, config: GuiAgentConfig):
        self._directory = None if config.recorded_in is None else Path(config.recorded_in)
        self._restores_replays = config.record == FAILURES_AND_REPLAYS
        self._budget: ScreenshotBudget | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="arpo_verl-records")
        self._enforcing: Future[None] | None = None
        if self._directory is not None:
            if config.trajectory_budget_bytes is not None:
                self._budget = ScreenshotBudget(self._directory, config.trajectory_budget_bytes)
            _unless_disk_fails(remove_unfinished, self._directory)

    @property
    def are_kept(self) -> bool:
        return self._directory is not None

    def batch_made(
        self,
        step: int,
        groups: Sequence[Group],
        drawn_in: Mapping[str, int],
        replays: Mapping[str, StoredTrajectory],
    ) -> None:
        """Open the log of this batch's groups, and see to what earlier steps recorded.

        Args:
            step: the training step that trains on the batch.
            drawn_in: by row's key, the step in which its prompt was drawn.
            replays: by key, what was written in an episode's place.
        """
        if self._directory is None:
            return
        logged = {
            outcome.key: LoggedRow(group.task_id, outcome.session, drawn_in[outcome.key], replays.get(outcome.key))
            for group in groups
            for outcome in group.outcomes
        }
        GROUP_LOG.open(self._directory / step_folder(step) / GROUPS_FILE, step, logged)
        if self._restores_replays:
            for trajectory in replays.values():
                self._thread.submit(_unless_disk_fails, self._restore, self._directory, trajectory)
        if self._budget is not None and (self._enforcing is None or self._enforcing.done()):
            self._enforcing = self._thread.submit(_unless_disk_fails, self._budget.enforce, step)

    def wait(self) -> None:
        """Wait until the work so far is done."""
        self._thread.submit(lambda: None).result()

    def _restore(self, directory: Path, trajectory: StoredTrajectory) -> None:
        """Give a replayed success its screenshots back."""
        if trajectory.episode is None:
            return
        folder = directory / folder_of(trajectory.episode, trajectory.task_id)
        add_missing_screenshots(folder, [as_png(screenshot) for screenshot in trajectory.screenshots])
        if self._budget is not None:
            self._budget.changed(trajectory.episode.step)


def _unless_disk_fails(work: Callable[..., Any], *args: Any) -> None:
    try:
        work(*args)
    except OSError as error:
        logger.error("the run's records could not be looked after: %s", error)
