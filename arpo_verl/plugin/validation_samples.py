"""Show sample episodes of a validation in veRL's loggers: a film strip, the outcome, and the id in `arpo-verl view`.

veRL's `trainer.log_val_generations` logs only texts (`ValidationGenerationsLogger.log` takes input, output and score).
This is for the loggers that `verl.utils.tracking.Tracking` of veRL 0.9.1 opened in the same process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from PIL import Image

from arpo_verl.plugin import queue
from arpo_verl.plugin.rows import read_outcomes, read_trajectories
from arpo_verl.records.documents import folder_of
from arpo_verl.records.film_strip import Frame, film_strip
from arpo_verl.replay.groups import episode_of
from arpo_verl.types import EpisodeId

logger = logging.getLogger(__name__)

TAG = "val_episodes"
_COLUMNS = ("step", "task", "instruction", "success", "stop reason", "replies", "episode", "film strip")


@dataclass(frozen=True)
class SampleEpisode:
    """A validation episode to show."""

    id: str
    """`step_000012/<folder>`, its name in `arpo-verl view` if it was recorded."""
    task_id: str
    instruction: str
    success: float
    """The evaluator's score, in [0, 1]."""
    stop_reason: str
    replies: tuple[str, ...]
    screenshots: tuple[bytes, ...] = field(repr=False)

    @cached_property
    def image(self) -> Image.Image:
        """The film strip: each screenshot above the reply to it."""
        captions = [*self.replies, *[""] * (len(self.screenshots) - len(self.replies))]
        return film_strip([Frame(shot, text) for shot, text in zip(self.screenshots, captions, strict=False)])

    @property
    def title(self) -> str:
        return f"{self.task_id}: success {self.success:g}, {self.stop_reason}; {self.id}"


class ValidationSamples:
    """Shows some episodes of each validation in the trainer's loggers.

    Args:
        count: episodes of a validation to show.
        decode: turns a reply's tokens into text.
    """

    def __init__(self, count: int, loggers: EpisodeLoggers, decode: Callable[[list[int]], str]):
        self._count = count if loggers else 0
        self._loggers = loggers
        self._decode = decode
        self._step, self._left = -1, 0

    def show(self, keys: Sequence[str], partition_id: str, step: int) -> None:
        """Show episodes from these rows. A validation may come in several batches."""
        self._left = self._left if step == self._step else self._count
        self._step = step
        if not self._left:
            return
        try:
            samples = read_samples(keys, partition_id, self._left, step, self._decode)
            self._loggers.log(samples, step)
        except Exception:  # a logger may raise anything, and a picture is no reason to end a training run
            logger.exception("could not show sample episodes of the validation at step %d", step)
        else:
            self._left -= len(samples)


def read_samples(
    keys: Sequence[str], partition_id: str, count: int, step: int, decode: Callable[[list[int]], str]
) -> list[SampleEpisode]:
    """Read one episode each of at most `count` tasks. The tasks are the same at every validation.

    Args:
        keys: the validation's rows.
        step: the training step after which the validation runs.
        decode: turns a reply's tokens into text.
    """
    by_task: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for key, info in zip(keys, queue.read(keys, partition_id, ["extra_info"])["extra_info"], strict=True):
        by_task.setdefault(queue.plain(info)["task_id"], (key, queue.plain(info)))
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
    """Return a sort key that does not depend on the names of tasks: neighbours in a file are often alike."""
    return sha256(task_id.encode()).digest()


class EpisodeLoggers:
    """Shows episodes in those of the trainer's loggers that take images: `tensorboard`, `wandb`, `swanlab`.

    Args:
        names: the recipe's `trainer.logger`, one or several; names other than these three are ignored.
        recorded_in: the folder with the episodes' records, for `arpo-verl view`; None if there are none.
    """

    def __init__(self, names: str | Iterable[str], recorded_in: str | None):
        self._recorded_in = recorded_in
        names = {names} if isinstance(names, str) else set(names)
        writers: Mapping[str, Callable[[Sequence[SampleEpisode], int], None]] = {
            "tensorboard": self._to_tensorboard,
            "wandb": _to_wandb,
            "swanlab": _to_swanlab,
        }
        self._writers = [write for name, write in writers.items() if name in names]

    def __bool__(self) -> bool:
        return bool(self._writers)

    def log(self, episodes: Sequence[SampleEpisode], step: int) -> None:
        """Show these episodes of the validation after `step` training steps."""
        for write in self._writers:
            write(episodes, step)

    @cached_property
    def _tensorboard(self) -> Any:
        """A writer in veRL's TensorBoard folder, opened as veRL's own `ValidationGenerationsLogger` does."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(os.environ.get("TENSORBOARD_DIR", "tensorboard_log"))

    def _to_tensorboard(self, episodes: Sequence[SampleEpisode], step: int) -> None:
        import numpy as np

        for episode in episodes:
            tag = f"{TAG}/{episode.task_id}"
            self._tensorboard.add_image(tag, np.asarray(episode.image), step, dataformats="HWC")
            self._tensorboard.add_text(tag, self._markdown(episode), step)
        self._tensorboard.flush()

    def _markdown(self, episode: SampleEpisode) -> str:
        """Return everything as an indented block, so that Markdown and HTML in a model's text stay text."""
        head = (f"task     {episode.task_id}", f"says     {episode.instruction}")
        outcome = (f"success  {episode.success:g}", f"stopped  {episode.stop_reason}", f"episode  {episode.id}")
        replies = (f"{number}. {reply}" for number, reply in enumerate(episode.replies, start=1))
        place = () if self._recorded_in is None else (f"open     arpo-verl view {self._recorded_in}",)
        text = "\n".join((*head, *outcome, *place, "", *replies))
        return "\n".join(f"    {line}" for line in text.splitlines())


def _to_wandb(episodes: Sequence[SampleEpisode], step: int) -> None:
    import wandb

    if wandb.run is None:  # veRL's own logger asks the same
        return
    rows: list[Iterable[Any]] = [
        [step, *_cells(episode), wandb.Image(episode.image, caption=episode.title, file_type="png")]
        for episode in episodes
    ]
    # With the step of veRL's metrics, which it logs afterwards.
    wandb.log({TAG: wandb.Table(columns=list(_COLUMNS), data=rows)}, step=step)


def _cells(episode: SampleEpisode) -> list[Any]:
    replies = "\n".join(episode.replies)
    return [episode.task_id, episode.instruction, episode.success, episode.stop_reason, replies, episode.id]


def _to_swanlab(episodes: Sequence[SampleEpisode], step: int) -> None:
    import swanlab

    swanlab.log(
        {f"{TAG}/{episode.task_id}": swanlab.Image(episode.image, caption=episode.title) for episode in episodes},
        step=step,
    )
