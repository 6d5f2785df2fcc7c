"""Provide veRL's dataset over task files, and read its rows back for the agent loop.

`data.custom_cls.path=pkg://arpo_verl.plugin.dataset`, `name=TaskDataset`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset

from arpo_verl.engines.upstream_patches import TASK_ORDER
from arpo_verl.errors import ConfigError, TaskError
from arpo_verl.lib.config import build_config, require
from arpo_verl.plugin.resume import order_of, read_record, resumed_checkpoint
from arpo_verl.plugin.settings import check_batch, task_selection
from arpo_verl.plugin.trainer_state import trainer_state
from arpo_verl.tasks.frontier import Frontier, FrontierConfig
from arpo_verl.tasks.selection import FRONTIER, load_selected_tasks
from arpo_verl.types import Task

DATA_SOURCE = "arpo_verl"


class TaskDataset(RLHFDataset):
    """Has one row for each task. `data.train_files` and `data.val_files` are paths for `arpo_verl.tasks.load_tasks`.

    Options: `data.tasks` (see `TaskSelection`), and veRL's own `data.train_max_samples`, `data.val_max_samples`,
    `data.shuffle` and `data.seed`. We use the parent class only for its conversation helpers, which agent loops call on
    the dataset's class. It reads no Parquet, tokenizes nothing and filters by no length here.

    Columns of a row: `raw_prompt` (messages), `data_source`, `reward_model`, `index`, and `extra_info` with `index`,
    `task_id`, `instruction` and `spec` (the task's JSON as text). All are plain values except veRL's `dummy_tensor`.

    Raises:
        TaskError: a task cannot be read or used.
        ConfigError: an option is wrong, or there are fewer tasks than one training batch needs.
    """

    def __init__(
        self,
        data_files: str | Sequence[str] | ListConfig,
        tokenizer: Any = None,
        config: DictConfig | None = None,
        processor: Any = None,
        max_samples: int = -1,
    ):
        self.config = OmegaConf.create({}) if config is None else config
        self.data_files = _as_list(data_files)
        self.tokenizer, self.processor = tokenizer, processor
        self.max_samples = max_samples
        self.serialize_dataset = True  # for the parent class: our rows travel with the object
        is_training = self._is_for_training()
        self.tasks = _rows(self.config, self.data_files, max_samples, is_training)
        self._frontier: Frontier | None = None
        if is_training:
            TASK_ORDER.check()
            check_batch(self.config, len(self), "train_batch_size")  # `check_silent` did, if the run has our callback
            self._open_frontier()

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, item: int) -> dict[str, Any]:
        from arpo_verl.agent.models.small import FAMILY

        task = self.tasks[item]
        index = int(item)
        return {
            # veRL needs this in every row. The agent loop opens the conversation itself, as the model's family does.
            "raw_prompt": FAMILY.opening(task.instruction, "English", ())[:-1],
            "data_source": DATA_SOURCE,
            "reward_model": {"style": "rule", "ground_truth": task.task_id},
            # As text: TransferQueue would take a nested mapping apart and add missing keys to it.
            "extra_info": {
                "index": index,
                "task_id": task.task_id,
                "instruction": task.instruction,
                "spec": json.dumps(dict(task.spec)),
            },
            "index": index,
            "tools_kwargs": {},
            "interaction_kwargs": {},
            # veRL requires a tensor in each batch.
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        }

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows of a batch for the data loader. `items` are in veRL's order; frontier sampling uses only
        their number."""
        return [self[item] if self._frontier is None else self._draw(self._frontier) for item in items]

    def state_dict(self) -> dict[str, Any] | None:
        """Return the dataset's part of the data loader's state: the frontier's, or nothing as in stock veRL."""
        return None if self._frontier is None else self._frontier.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state, at the first draw of the resumed run.

        Raises:
            ConfigError: the checkpoint is from a run with `replay.mode=resume`. Its queue may contain episodes that
                began within a success.
        """
        if "resume" in state:
            raise ConfigError(
                "cannot go on from a run with replay.mode=resume, which this version does not have; "
                "start a new run with another run_dir, or finish this one with the version that started it"
            )
        if self._frontier is not None and "tasks" in state:
            self._frontier.load_state_dict(state)

    def order_change(self) -> str:
        """Return why the checkpoint's position in the order of tasks does not fit this run; empty if it fits.

        Raises:
            ConfigError: the checkpoint's record is damaged.
        """
        state = trainer_state(self.config)
        checkpoint = None if state.recipe.get("trainer") is None else resumed_checkpoint(state.resume)
        if checkpoint is None:
            return ""  # without a trainer: the caller knows what its state belongs to
        saved = read_record(checkpoint)
        if saved is None:
            return "the checkpoint does not record its tasks"
        return saved.order_change(order_of(state.recipe, (task.task_id for task in self.tasks)))

    def _open_frontier(self) -> None:
        """Draw with the frontier if `data.tasks.sampling` says so. The sampler reports the outcomes to it."""
        selection = task_selection(self.config)
        if selection.sampling == FRONTIER:
            workers, name = self.config.get("dataloader_num_workers", 0), "data.dataloader_num_workers"
            remedy = "set it to 0: a worker process would draw ahead and never learn the outcome"
            require(workers == 0, name, "0 with data.tasks.sampling=frontier", workers, remedy)
            most = self.config.get("train_max_samples", -1)
            words = "different from data.train_max_samples with data.tasks.sampling=frontier"
            remedy = "change one: both read the same files, so validation would draw with the frontier too"
            require(not self._is_like_validation(), "data.val_max_samples", words, most, remedy)
            options = build_config(FrontierConfig, "data.tasks.frontier", selection.frontier)
            self._position = {task.task_id: position for position, task in enumerate(self.tasks)}
            group_size = trainer_state(self.config).batch.n
            self._frontier = Frontier(list(self._position), group_size, options, self.config.get("seed"))
        trainer_state(self.config).frontier = self._frontier

    def _draw(self, frontier: Frontier) -> dict[str, Any]:
        """Return the next row. `draw` in its `extra_info` distinguishes it from others of its task in a step."""
        row = self[self._position[frontier.draw()]]
        row["extra_info"]["draw"] = frontier.num_drawn
        return row

    def _is_for_training(self) -> bool:
        """Return whether this is the training data. veRL does not say, but gives its two datasets different options.

        The same file with the same `max_samples` counts as training. Our recipes give them different options.
        """
        if self.data_files != _as_list(self.config.get("train_files")):
            return False
        if self.data_files != _as_list(self.config.get("val_files")) or self._is_like_validation():
            return True
        return bool(self.max_samples == self.config.get("train_max_samples", -1))

    def _is_like_validation(self) -> bool:
        """Return whether training and validation have the same options."""
        options = self.config
        same_files = _as_list(options.get("train_files")) == _as_list(options.get("val_files"))
        return same_files and options.get("train_max_samples", -1) == options.get("val_max_samples", -1)


def read_task(row: Mapping[str, Any]) -> Task:
    """Return the row's task, from `extra_info`: `task_id`, `instruction`, and `spec`, the task file's JSON.

    Raises:
        TaskError: they are missing or malformed; the message says what a dataset must give.
    """
    extra_info = row.get("extra_info")
    extra_info = extra_info if isinstance(extra_info, Mapping) else {}
    missing = [name for name in ("task_id", "instruction", "spec") if name not in extra_info]
    if missing:
        raise TaskError(
            f"a dataset row must carry task_id, instruction and spec in extra_info, but {', '.join(missing)} "
            "is missing; set data.custom_cls to pkg://arpo_verl.plugin.dataset, TaskDataset"
        )
    spec = extra_info["spec"]
    if isinstance(spec, str):
        try:
            spec = json.loads(spec)
        except json.JSONDecodeError as error:
            raise TaskError(f"extra_info.spec must be the task's JSON, but it cannot be parsed: {error}") from error
    if not isinstance(spec, Mapping):
        raise TaskError(f"extra_info.spec must be the task's JSON object, got {type(spec).__name__}")
    return Task(str(extra_info["task_id"]), str(extra_info["instruction"]), spec)


def training_rows(data: DictConfig) -> list[Task]:
    """Return the tasks of the training rows that a recipe's section `data` asks for, in the dataset's order.

    Raises:
        TaskError: a task cannot be read or used.
        ConfigError: an option is wrong.
    """
    return _rows(data, _as_list(data.train_files), data.get("train_max_samples", -1), is_training=True)


def _rows(data: DictConfig, files: list[str], most: int, is_training: bool) -> list[Task]:
    """Return the rows of one dataset, at most so many: random ones if the data is shuffled, else the first."""
    selection = task_selection(data)
    tasks = load_selected_tasks(files, selection) * (selection.repeat if is_training else 1)
    if not 0 < most < len(tasks):
        return tasks
    if not data.get("shuffle", False):
        return tasks[:most]
    chosen = np.random.default_rng(data.get("seed")).choice(len(tasks), most, replace=False)
    return [tasks[i] for i in chosen]


def _as_list(files: Any) -> list[str]:
    return list(files) if isinstance(files, (list, tuple, ListConfig)) else [files]
