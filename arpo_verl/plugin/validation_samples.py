"""Sample episodes of a validation, read from its rows in TransferQueue while they are there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from arpo_verl.plugin import queue
from arpo_verl.plugin.episode_loggers import EpisodeLoggers, SampleEpisode
from arpo_verl.plugin.rows import read_outcomes, read_trajectories
from arpo_verl.records.documents import folder_of
from arpo_verl.replay.choice import episode_of
from arpo_verl.types import EpisodeId

logger = logging.getLogger(__name__)


class ValidationSamples:
    """Shows some of each validation's episodes in the trainer's loggers.

    Args:
        count: episodes a validation; 0 shows none.
        decode: a reply's tokens to text.
    """

    def __init__(self, count: int, loggers: EpisodeLoggers, decode: Callable[[list[int]], str]):
        self._count = count if loggers else 0
        self._loggers = loggers
        self._decode = decode
        self._step, self._left = -1, 0

    def show(self, keys: Sequence[str], partition_id: str, step: int) -> None:
        """Show episodes among these rows: a validation may come in several batches."""
        self._left = self._left if step == self._step else self._count
        self._step = step
        if not self._left:
            return
        try:
            samples = read_samples(keys, partition_id, self._left, step, self._decode)
            self._loggers.log(samples, step)
        except Exception:  # a logger may raise anything, and a picture is no reason to end a training run
            logger.exception("sample episodes of the validation at step %d are not shown", step)
        else:
            self._left -= len(samples)


def read_samples(
    keys: Sequence[str], partition_id: str, count: int, step: int, decode: Callable[[list[int]], str]
) -> list[SampleEpisode]:
    """One episode each of at most `count` tasks, the same tasks at every validation.

    Args:
        keys: the validation's rows.
        step: after which the policy is validated.
        decode: a reply's tokens to text.
    """
    extra_info = _column(keys, partition_id, "extra_info") if keys else []
    by_task: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for key, info in zip(keys, extra_info, strict=True):
        by_task.setdefault(info["task_id"], (key, info))
    chosen = [by_task[task_id] for task_id in sorted(by_task, key=_draw)[:count]]
    episodes = {episode_of(key) for key, _ in chosen}
    outcomes = read_outcomes([key for key in keys if episode_of(key) in episodes], partition_id)
    instructions = {episode_of(key): info["instruction"] for key, info in chosen}
    order = {episode_of(key): place for place, (key, _) in enumerate(chosen)}
    outcomes.sort(key=lambda outcome: order[outcome.key])
    trajectories = read_trajectories(outcomes, partition_id, step)
    return [
        SampleEpisode(
            id=folder_of(EpisodeId(step, outcome.uid, outcome.session), outcome.task_id).as_posix(),
            task_id=outcome.task_id,
            instruction=instructions[outcome.key],
            success=outcome.success,
            stop_reason=outcome.stop_reason,
            replies=tuple(decode(reply) for row in trajectory.each_row() for reply in row.replies()),
            screenshots=tuple(trajectory.screenshots),
        )
        for outcome, trajectory in zip(outcomes, trajectories, strict=True)
    ]


def _draw(task_id: str) -> bytes:
    """An order that has nothing to do with what tasks are called: neighbours in a file are often alike."""
    return sha256(task_id.encode()).digest()


def _column(keys: Sequence[str], partition_id: str, name: str) -> list[Any]:
    return [queue.plain(value) for value in queue.read(keys, partition_id, [name])[name]]
