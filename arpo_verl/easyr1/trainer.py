"""Replace four methods of EasyR1's trainer: making a batch, validating, and saving and loading a
checkpoint. Its `fit()` runs unchanged."""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from torch.utils.data import SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler  # torch's own cannot continue in a later epoch

from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.conversation import TokenLimits
from arpo_verl.agent.rollout.template_builder import TemplateBuilder
from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.desktops.pool.desktop_pool import DesktopPool
from arpo_verl.easyr1 import stock
from arpo_verl.easyr1.engine import TurnEngine
from arpo_verl.easyr1.episodes import EpisodePlayer, Played
from arpo_verl.easyr1.estimator import register_estimator
from arpo_verl.easyr1.images import bounded_geometry
from arpo_verl.easyr1.replayer import Replayer
from arpo_verl.easyr1.rows import make_batch
from arpo_verl.easyr1.settings import DoorConfig
from arpo_verl.lib.config import require
from arpo_verl.records.json_files import append_objects
from arpo_verl.records.layout import METRICS_FILE
from arpo_verl.records.run_records import GroupLog
from arpo_verl.replay.fingerprint import model_fingerprint
from arpo_verl.tasks.selection import load_selected_tasks
from arpo_verl.types import Task

logger = logging.getLogger(__name__)

RUN_FOLDER = "run_folder"
"""Our logger's name, beside those in `trainer.logger`."""
_STEP_FOLDER = "global_step_"


class RunFolderLogger:
    """Appends a step's metrics, as a logger of EasyR1, to the file that `arpo-verl view` reads."""

    def __init__(self, file: Path, config: Mapping[str, Any]) -> None:
        self._file = file

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Append a line."""
        append_objects(self._file, [{"step": step, "data": {name: float(value) for name, value in data.items()}}])

    def finish(self) -> None:
        """Do nothing: no file is open."""


def task_loader(door: DoorConfig, data: Any) -> StatefulDataLoader[Task]:
    """Return a loader of training tasks, a batch a step: in random order by `data.seed`, or as in the files. Its saved
    state continues the order exactly, in any epoch.

    Raises:
        TaskError: a task cannot be read or used.
        ConfigError: there are fewer tasks than a batch needs.
    """
    tasks = load_selected_tasks(door.train_files, door.tasks) * door.tasks.repeat
    size = data.rollout_batch_size
    require(size <= len(tasks), "data.rollout_batch_size", f"at most the {len(tasks)} tasks", size, "add tasks")
    order = RandomSampler(tasks, generator=torch.Generator().manual_seed(data.seed))
    sampler = order if data.shuffle else SequentialSampler(tasks)
    return StatefulDataLoader(tasks, batch_size=size, sampler=sampler, collate_fn=list, drop_last=True)


class ArpoTrainer(stock.RayPPOTrainer):
    """EasyR1's trainer with desktops.

    Args:
        door: our sections of the configuration.
        pool: the job's desktops.
        val_tasks: tasks for validation; empty for none.
        **theirs: arguments of `RayPPOTrainer`, without validation's data loader and the reward functions.
    """

    def __init__(self, door: DoorConfig, pool: DesktopPool, val_tasks: Sequence[Task], **theirs: Any) -> None:
        data = theirs["config"].data
        stock.LOGGERS[RUN_FOLDER] = partial(RunFolderLogger, door.run_dir / METRICS_FILE)
        theirs["config"].trainer.logger = (*theirs["config"].trainer.logger, RUN_FOLDER)
        # EasyR1's `fit()` validates if there is such a function, but only calls `_validate`.
        super().__init__(**theirs, val_dataloader=None, val_reward_fn=self._validate if val_tasks else None)
        geometry = bounded_geometry(self.processor, data.min_pixels, data.max_pixels)
        pixels = {"min_pixels": geometry.min_pixels, "max_pixels": geometry.max_pixels}
        policy = (self.tokenizer, self.processor)
        self._chat = ChatTokenizer.from_processor(*policy, TemplateBuilder(self.processor), pixels)
        most = self.config.worker.rollout.max_model_len
        limits = TokenLimits(data.max_prompt_length, data.max_response_length, most)
        self._door, self._pool, self._val_tasks, self._groups = door, pool, val_tasks, GroupLog()
        self._player = EpisodePlayer(door, pool, self._chat, limits)
        is_own = geometry == ImageGeometry.from_processor(self.processor)
        fingerprint = model_fingerprint(*policy, None if is_own else pixels, door.agent)
        self._replayer = Replayer(door, self._chat, fingerprint, self._groups, limits)
        register_estimator(door.replay, self._groups, self._replayer.replayed)

    def _make_batch_data(self, metrics: dict[str, Any]) -> Any:
        try:
            tasks = next(self.data_iterator)
        except StopIteration:
            self.data_iterator = iter(self.train_dataloader)
            tasks = next(self.data_iterator)
        engine = self._engine({})
        played = self._play(tasks, self.config.worker.rollout.n, engine)
        rows, own = self._replayer.process(played, self.global_step)
        metrics.update({**own, "rollout/engine_calls": engine.calls, **self._desktop_metrics()})
        data = self.config.data
        lengths = (data.max_prompt_length, data.max_response_length)
        return make_batch(rows, self.processor, self._chat, *lengths, fps=data.video_fps)

    def _validate(self) -> dict[str, Any]:
        """Play each validation task `val_override_config.n` times, once by default, at its sampling values."""
        sampling = dict(self.config.worker.rollout.val_override_config)
        rollouts = sampling.pop("n", 1)
        self.actor_rollout_ref_wg.prepare_rollout_engine()
        played = self._play(self._val_tasks, rollouts, self._engine(sampling), validates=True)
        self.actor_rollout_ref_wg.release_rollout_engine()
        scores = [one.score.reward for one in played if one.score is not None]
        successes = [one.episode.success for one in played if one.episode is not None]
        self.val_reward_score = statistics.fmean(scores)
        return {
            "val/reward_score": self.val_reward_score,
            "val/success_mean": statistics.fmean(successes),
            "val/dropped": len(played) - len(successes),
        }

    def _save_checkpoint(self) -> None:
        # This comes first: EasyR1 names a checkpoint the last one at the end, when it must be complete.
        self._replayer.save(Path(self.config.trainer.save_checkpoint_path, f"{_STEP_FOLDER}{self.global_step}"))
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        named = self.config.trainer.load_checkpoint_path
        folder = Path(self.config.trainer.save_checkpoint_path) if named is None else Path(named).parent
        self._replayer.restore(checkpoints_until(folder, self.global_step) if self.global_step else [])

    def _engine(self, sampling: Mapping[str, Any]) -> TurnEngine:
        most, fps = self._door.agent.max_reply_tokens, self.config.data.video_fps
        return TurnEngine(self.actor_rollout_ref_wg, self._chat, most, sampling, fps)

    def _desktop_metrics(self) -> dict[str, float]:
        try:
            return self._pool.metrics()
        except ray.exceptions.RayError as error:  # the batch is good without them
            logger.warning("the desktop pool gave no metrics this step: %s", error)
            return {}

    def _play(self, tasks: Sequence[Task], rollouts: int, engine: TurnEngine, validates: bool = False) -> list[Played]:
        return asyncio.run(self._player.play(tasks, rollouts, self.global_step, engine, validates))


def checkpoints_until(folder: Path, step: int) -> list[Path]:
    """Return the checkpoint of this step and those of earlier steps, newest first."""
    names = [path.name.removeprefix(_STEP_FOLDER) for path in folder.glob(f"{_STEP_FOLDER}*")]
    steps = sorted((int(name) for name in names if name.isdecimal() and int(name) <= step), reverse=True)
    return [folder / f"{_STEP_FOLDER}{one}" for one in steps]
