"""`replay.mode: resume` in the stock trainer: the dataset gives a row what its rollouts begin with, the sampler tells
what came of it.

All sessions of a prompt are made from one row, so they begin alike; and a row is fetched from the dataset at the moment
when it is to be played, in the process that holds the store, in all three modes of the trainer (`frontier.py` rests on
the same). So no worker has to reach the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from arpo_verl.errors import ArpoError
from arpo_verl.replay.choice import Group
from arpo_verl.replay.config import RESUME, ReplayConfig
from arpo_verl.replay.resume import Curriculum, Resumption
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.rollout.prefix import Prefix

logger = logging.getLogger(__name__)

RESUME_FIELD = "resume"
"""Name in a row's `extra_info`, of a `Prefix` as text, "" where there is none; and in the `extra_fields` of what was
played from a row that has one, of the rollout's `Start`."""


class TrainingResume:
    """Of the training data that this process draws from, and of the store that it holds."""

    def __init__(self) -> None:
        self._config: ReplayConfig | None = None
        self._store: SuccessStore | None = None
        self._curriculum: Curriculum | None = None
        self._state: Mapping[str, Any] = {}
        self._step = 0
        """The last that a batch was made in."""

    @property
    def is_open(self) -> bool:
        return self._curriculum is not None

    def open(self, config: ReplayConfig, store: SuccessStore, step: int = 0) -> None:
        """Begin a run, where it resumes rollouts at all.

        Args:
            step: the one that it goes on from.
        """
        is_on = config.enable and config.mode == RESUME
        self._config, self._store, self._step = config, store, step
        self._curriculum = Curriculum(config) if is_on else None
        self.load_state_dict(self._state)

    def give(self, row: dict[str, Any]) -> dict[str, Any]:
        """The dataset's row of a training task, with what its rollouts begin with."""
        if self._curriculum is None or self._store is None:
            return row
        resumption = self._curriculum.draw(row["extra_info"]["task_id"], self._store, self._step + 1)
        row["extra_info"][RESUME_FIELD] = "" if resumption is None else self._prefix(resumption)
        return row

    def record(self, step: int, groups: Iterable[Group]) -> None:
        """Tell what groups came to as they were played; those thrown away too."""
        self._step = step
        if self._curriculum is not None:
            self._curriculum.record(groups)

    def metrics(self) -> dict[str, float]:
        """Of the curriculum; none without one."""
        return {} if self._curriculum is None else self._curriculum.metrics()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._curriculum is None else self._curriculum.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, whether the curriculum is there already or comes later."""
        self._state = state
        if self._curriculum is not None:
            self._curriculum.load_state_dict(state)

    def _prefix(self, resumption: Resumption) -> str:
        assert self._config is not None
        replies, left = tuple(map(tuple, resumption.replies)), resumption.start.left
        try:
            prefix = Prefix.of_screenshots(replies, left, *resumption.screenshots, self._config.resume_tolerance)
        except ArpoError:
            logger.exception("a success of task %s cannot be resumed from", resumption.trajectory.task_id)
            return ""
        return prefix.to_text()


def read_prefix(row: Mapping[str, Any]) -> Prefix | None:
    """With what a row's rollouts begin.

    Raises:
        ReplayError: it is no prefix.
    """
    extra_info = row.get("extra_info")
    text = extra_info.get(RESUME_FIELD) if isinstance(extra_info, Mapping) else None
    return Prefix.of_text(text) if text else None


TRAINING_RESUME = TrainingResume()
"""Of this process: veRL makes dataset and sampler apart, both in the trainer's."""
