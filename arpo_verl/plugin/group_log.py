"""`groups.jsonl` beside a step's recorded episodes: the rewards and advantages that the trainer used, and which replay
took whose place.

The sampler knows the episodes, the estimator the advantages. Both run in the trainer's process, one batch at a time, so
the one opens the log of a batch and the other writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arpo_verl.records.json_files import append_objects
from arpo_verl.replay.choice import uid_of
from arpo_verl.replay.labels import RowLabel
from arpo_verl.replay.trajectory import StoredTrajectory

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
    """The batch at hand."""

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

    def write(self, labels: Mapping[int, RowLabel], rewards_B: torch.Tensor, advantages_B: torch.Tensor) -> None:
        """Append the open batch's groups, a line each, and close it; nothing where none is open.

        Args:
            labels: by position in the tensors; padding rows have none.
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
        except OSError:
            logger.exception("the groups of step %d could not be written to %s", self._step, file)

    def _group(self, uid: str, row: LoggedRow) -> dict[str, Any]:
        return {"uid": uid, "task_id": row.task_id, "step": self._step, "drawn_in": row.drawn_in, "rows": []}


def _source(trajectory: StoredTrajectory) -> dict[str, Any]:
    """Which recorded episode a replay was; of one that another run recorded only the step is known."""
    episode = trajectory.episode
    if episode is None:
        return {"step": trajectory.step, "uid": None, "session": None}
    return {"step": episode.step, "uid": episode.uid, "session": episode.session}


GROUP_LOG = GroupLog()
"""Of this process."""
