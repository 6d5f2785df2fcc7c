"""The trainer's process records what only it knows about a run, and cleans up once before the run begins."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arpo_verl.agent.rollout.config import FAILURES_AND_REPLAYS, GuiAgentConfig
from arpo_verl.errors import ImageError
from arpo_verl.records.documents import folder_of
from arpo_verl.records.episode_folder import add_missing_screenshots, remove_finished, remove_unfinished
from arpo_verl.records.frontier import append_estimates
from arpo_verl.records.json_files import append_objects
from arpo_verl.records.jumps import Jump, append_jumps
from arpo_verl.records.layout import FRONTIER_FILE, GROUPS_FILE, JUMPS_FILE, LOG_PROBS_FILE, step_folder
from arpo_verl.replay.groups import Group, episode_of, session_of, uid_of
from arpo_verl.replay.labels import RowLabel
from arpo_verl.replay.store.screenshots import as_png
from arpo_verl.replay.trajectory import StoredTrajectory
from arpo_verl.tasks.frontier import TaskEstimate
from arpo_verl.types import EpisodeId

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoggedRow:
    """What the sampler knows about a row."""

    task_id: str
    session: int
    drawn_in: int
    """The training step that drew the prompt, and names the episode's folder."""
    replay: StoredTrajectory | None = None
    """The replay that replaced the episode, or stands beside the group."""


class GroupLog:
    """Writes `groups.jsonl` beside a step's episodes: the trainer's rewards and advantages, and the replays.

    The sampler knows the episodes, the estimator the advantages. Both run in the trainer's process, one batch at a
    time, so the sampler opens the log of a batch and the estimator writes it.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._step = 0
        self._rows: Mapping[str, LoggedRow] = {}

    def open(self, file: Path, step: int, rows: Mapping[str, LoggedRow]) -> None:
        """Begin a batch.

        Args:
            step: the training step that trains on it.
            rows: its rows, by key.
        """
        self._file, self._step, self._rows = file, step, rows

    def write(
        self,
        labels: Mapping[int, RowLabel],
        rewards_B: torch.Tensor,
        advantages_B: torch.Tensor,
        log_probs: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Append the open batch's groups, one line each, and close the batch; do nothing if none is open.

        Args:
            labels: labels by position in the tensors; padding rows have none.
            log_probs: the trainer's log-probs of the policy's tokens, in order, by the row's key.
        """
        file, self._file = self._file, None
        if file is None:
            return
        rewards, advantages = rewards_B.tolist(), advantages_B.tolist()
        groups: dict[str, dict[str, Any]] = {}
        for position, label in labels.items():
            row = self._rows.get(label.key)  # only an episode's first row is there
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
        """Append log-probs beside their tokens: those of the episode, or of the replay that replaced it."""
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
    """Return the folder with the trained tokens; None if no run of this folder recorded them."""
    if row.replay is None:
        return directory / folder_of(EpisodeId(row.drawn_in, uid, row.session), row.task_id)
    episode = row.replay.episode
    return None if episode is None else directory / folder_of(episode, row.replay.task_id)


def _source(trajectory: StoredTrajectory) -> dict[str, Any]:
    """Return the recorded episode of a replay; if another run recorded it, only the step is known."""
    episode = trajectory.episode
    if episode is None:
        return {"step": trajectory.step, "uid": None, "session": None}
    return {"step": episode.step, "uid": episode.uid, "session": episode.session}


class RunRecords:
    """Keeps the records below `gui_agent.trajectory_dir`, and writes them in the background, in order.

    Make it before the first episode starts: it removes unfinished episodes of a killed run.

    Args:
        groups: the log, which it opens for each batch.
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
        """Open the log of this batch's groups, and restore replayed episodes' screenshots.

        Args:
            step: the training step that trains on the batch.
            drawn_in: the step that drew the prompt, by the row's key.
            replays: the successes that replaced episodes or were added, by the row's key.
        """
        if self._directory is None:
            return
        logged = {}
        for group in groups:
            keys = [outcome.key for outcome in group.outcomes]
            drawn = drawn_in[keys[0]]
            for key in (*keys, *(key for key in replays if uid_of(key) == group.uid and key not in keys)):
                logged[key] = LoggedRow(group.task_id, session_of(key), drawn, replays.get(key))
        self._groups.open(self._directory / step_folder(step) / GROUPS_FILE, step, logged)
        if self._restores_replays:
            for trajectory in replays.values():
                self._thread.submit(_unless_disk_fails, self._restore, self._directory, trajectory)

    def drop(self, uids: Collection[str], kept: Sequence[StoredTrajectory]) -> None:
        """Remove the episodes of prompts that are played again, except those of the successes that are kept."""
        if self._directory is not None and uids:
            folders = {self._directory / folder_of(one.episode, one.task_id) for one in kept if one.episode is not None}
            _unless_disk_fails(remove_finished, self._directory, uids, folders)

    def frontier_moved(self, step: int, estimates: Sequence[TaskEstimate]) -> None:
        """Write frontier sampling's estimates of these tasks after a training step."""
        if self._directory is not None:
            self._thread.submit(_unless_disk_fails, append_estimates, self._directory / FRONTIER_FILE, step, estimates)

    def jumped(self, jumps: Sequence[Jump]) -> None:
        """Write the tasks whose success jumped."""
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
            os.utime(folder.parent)  # so that the budget's keeper sees a changed step


def _unless_disk_fails(work: Callable[..., Any], *args: Any) -> None:
    try:
        work(*args)
    except (OSError, ImageError) as error:
        logger.error("could not write the run's records: %s", error)
