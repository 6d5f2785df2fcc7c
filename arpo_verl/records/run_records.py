"""The trainer's own part in recording a run: what only its process knows, and what is done once, before it begins."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arpo_verl.errors import ImageError
from arpo_verl.records.documents import folder_of
from arpo_verl.records.episode_folder import add_missing_screenshots, remove_unfinished
from arpo_verl.records.frontier import append_estimates
from arpo_verl.records.json_files import append_objects
from arpo_verl.records.jumps import Jump, append_jumps
from arpo_verl.records.layout import FRONTIER_FILE, GROUPS_FILE, JUMPS_FILE, LOG_PROBS_FILE, step_folder
from arpo_verl.replay.choice import Group, episode_of, uid_of
from arpo_verl.replay.labels import RowLabel
from arpo_verl.replay.store.encoding import as_png
from arpo_verl.replay.trajectory import StoredTrajectory
from arpo_verl.rollout.config import FAILURES_AND_REPLAYS, GuiAgentConfig
from arpo_verl.tasks.frontier import TaskEstimate
from arpo_verl.types import EpisodeId

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoggedRow:
    """What the sampler knows of a row."""

    task_id: str
    session: int
    drawn_in: int
    """Training step in which the prompt was drawn: the folder of the episode."""
    replay: StoredTrajectory | None = None
    """What was written in the episode's place."""


class GroupLog:
    """`groups.jsonl` beside a step's episodes: the rewards and advantages that the trainer used, and which replay took
    whose place.

    The sampler knows the episodes, the estimator the advantages. Both run in the trainer's process, one batch at a
    time, so the one opens the log of a batch and the other writes it.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._step = 0
        self._rows: Mapping[str, LoggedRow] = {}

    def open(self, file: Path, step: int, rows: Mapping[str, LoggedRow]) -> None:
        """Begin a batch.

        Args:
            step: the training step that trains on it.
            rows: by key.
        """
        self._file, self._step, self._rows = file, step, rows

    def write(
        self,
        labels: Mapping[int, RowLabel],
        rewards_B: torch.Tensor,
        advantages_B: torch.Tensor,
        log_probs: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Append the open batch's groups, a line each, and close it; nothing where none is open.

        Args:
            labels: by position in the tensors; padding rows have none.
            log_probs: by row's key, the trainer's log-probs of the tokens that a policy wrote, in their order.
        """
        file, self._file = self._file, None
        if file is None:
            return
        rewards, advantages = rewards_B.tolist(), advantages_B.tolist()
        groups: dict[str, dict[str, Any]] = {}
        for position, label in labels.items():
            row = self._rows.get(label.key)  # that of an episode's first row
            if row is not None:
                members = groups.setdefault(uid_of(label.key), self._group(uid_of(label.key), row))["rows"]
                members.append(
                    {
                        "session": row.session,
                        "reward": rewards[position],
                        "advantage": advantages[position],
                        "replay": None if row.replay is None else _source(row.replay),
                    }
                )
        for group in groups.values():
            group["rows"].sort(key=lambda member: member["session"])
        try:
            append_objects(file, groups.values())
            self._write_log_probs(file.parent.parent, log_probs or {})
        except OSError:
            logger.exception("the groups of step %d could not be written to %s", self._step, file)

    def _write_log_probs(self, directory: Path, log_probs: Mapping[str, Sequence[float]]) -> None:
        """Append them beside the tokens that they are of: those of the episode, or of the replay in its place."""
        episodes: dict[str, list[float]] = {}
        for key in sorted(log_probs, key=lambda key: int(key.rsplit("_", 1)[1])):
            episodes.setdefault(episode_of(key), []).extend(log_probs[key])
        for key, values in episodes.items():
            row = self._rows.get(key)
            folder = None if row is None else _folder_of_tokens(directory, uid_of(key), row)
            if folder is not None and folder.is_dir():
                line = {"step": self._step, "log_probs": [round(value, 4) for value in values]}
                append_objects(folder / LOG_PROBS_FILE, [line])

    def _group(self, uid: str, row: LoggedRow) -> dict[str, Any]:
        return {"uid": uid, "task_id": row.task_id, "step": self._step, "drawn_in": row.drawn_in, "rows": []}


def _folder_of_tokens(directory: Path, uid: str, row: LoggedRow) -> Path | None:
    """Where the tokens that were trained on are recorded; None where no run of this folder recorded them."""
    if row.replay is None:
        return directory / folder_of(EpisodeId(row.drawn_in, uid, row.session), row.task_id)
    episode = row.replay.episode
    return None if episode is None else directory / folder_of(episode, row.replay.task_id)


def _source(trajectory: StoredTrajectory) -> dict[str, Any]:
    """Which recorded episode a replay was; of one that another run recorded only the step is known."""
    episode = trajectory.episode
    if episode is None:
        return {"step": trajectory.step, "uid": None, "session": None}
    return {"step": episode.step, "uid": episode.uid, "session": episode.session}


class RunRecords:
    """The records below `gui_agent.trajectory_dir`. Work on the disk is done in the background, in order.

    To be made before the first episode is played: it removes those that a killed run left unfinished.

    Args:
        groups: the log that it opens for each batch.
    """

    def __init__(self, config: GuiAgentConfig, groups: GroupLog):
        self._groups = groups
        self._directory = None if config.recorded_in is None else Path(config.recorded_in)
        self._restores_replays = config.record == FAILURES_AND_REPLAYS
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="arpo_verl-records")
        if self._directory is not None:
            _unless_disk_fails(remove_unfinished, self._directory)

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
        self._groups.open(self._directory / step_folder(step) / GROUPS_FILE, step, logged)
        if self._restores_replays:
            for trajectory in replays.values():
                self._thread.submit(_unless_disk_fails, self._restore, self._directory, trajectory)

    def frontier_moved(self, step: int, estimates: Sequence[TaskEstimate]) -> None:
        """Write down what frontier sampling thinks of these tasks after a training step."""
        if self._directory is not None:
            self._thread.submit(_unless_disk_fails, append_estimates, self._directory / FRONTIER_FILE, step, estimates)

    def jumped(self, jumps: Sequence[Jump]) -> None:
        """Write down the tasks whose success jumped."""
        if self._directory is not None and jumps:
            self._thread.submit(_unless_disk_fails, append_jumps, self._directory / JUMPS_FILE, jumps)

    def wait(self) -> None:
        """Wait until the work so far is done."""
        self._thread.submit(lambda: None).result()

    def _restore(self, directory: Path, trajectory: StoredTrajectory) -> None:
        """Give a replayed success its screenshots back."""
        if trajectory.episode is None:
            return
        folder = directory / folder_of(trajectory.episode, trajectory.task_id)
        add_missing_screenshots(folder, [as_png(screenshot) for screenshot in trajectory.screenshots])
        if folder.is_dir():
            os.utime(folder.parent)  # the keeper of the budget looks at steps that have changed


def _unless_disk_fails(work: Callable[..., Any], *args: Any) -> None:
    try:
        work(*args)
    except (OSError, ImageError) as error:
        logger.error("the run's records could not be looked after: %s", error)
