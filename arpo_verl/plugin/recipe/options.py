"""Read a composed recipe by the names of its options."""

from __future__ import annotations

import math
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arpo_verl.agent.models.family import FULL, load_family
from arpo_verl.errors import ArpoError
from arpo_verl.plugin.settings import task_selection
from arpo_verl.tasks.selection import load_selected_tasks
from arpo_verl.types import Task

_SHORT = ("actor", "model", "ref", "rollout")


def full_name(option: str) -> str:
    """Return an option's name as the command line takes it. Here `actor_rollout_ref.` may be left out."""
    return f"actor_rollout_ref.{option}" if option.partition(".")[0] in _SHORT else option


class Recipe:
    """A composed recipe. `recipe["rollout.n"]` is an option's value, or None if the recipe does not have it."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config

    def __getitem__(self, name: str) -> Any:
        return OmegaConf.select(self.config, full_name(name), throw_on_missing=False)

    @property
    def mode(self) -> str:
        """The trainer's mode."""
        return str(self["trainer.v1.trainer_mode"])

    @property
    def gpus_per_engine(self) -> int:
        """Number of GPUs of one rollout engine."""
        sizes = (f"rollout.{kind}_parallel_size" for kind in ("tensor_model", "data", "pipeline_model"))
        return int(math.prod(self[size] or 1 for size in sizes))

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that the recipe allows."""
        return int(self["data.max_prompt_length"] + self["data.max_response_length"])

    @property
    def has_critic(self) -> bool:
        """Whether the run has a critic, as veRL's `need_critic` decides."""
        enable = self["critic.enable"]
        return bool(self["algorithm.adv_estimator"] == "gae" if enable is None else enable)

    @property
    def has_several_rows(self) -> bool:
        """Whether an episode has, or may have, several rows."""
        if self["gui_agent.harness"] is not None:
            return True
        usual = load_family(str(self["gui_agent.model_family"] or "ui_tars_15")).context
        return bool((self["gui_agent.context"] or usual) != FULL)


def longest_instruction(config: DictConfig) -> str:
    """Return the longest instruction of all tasks; empty if none can be read."""
    tasks = (task for name in ("data.train_files", "data.val_files") for task in tasks_of(config, name))
    return max((task.instruction for task in tasks), key=len, default="")


def num_training_rows(config: DictConfig) -> int | None:
    """Count the rows of the training data, with tasks that an epoch repeats; None if the tasks cannot be read."""
    data = config.data
    rows = len(tasks_of(config, "data.train_files")) * (OmegaConf.select(data, "tasks.repeat") or 1)
    limit = data.get("train_max_samples", -1)
    return (min(rows, limit) if limit > 0 else rows) or None


def steps_of_epochs(config: DictConfig) -> int | None:
    """Count the steps of all epochs, as `PPOTrainer._init_dataloader` does; None if the tasks cannot be read."""
    rows = num_training_rows(config)
    return None if rows is None else int(rows // config.data.train_batch_size * config.trainer.total_epochs)


def training_steps(config: DictConfig) -> int | None:
    """Count the steps that the trainer makes with a composed recipe; None if its tasks cannot be read."""
    steps, most = steps_of_epochs(config), config.trainer.total_training_steps
    known = [int(number) for number in (steps, most) if number is not None]
    return min(known, default=None)


def count_steps(config: DictConfig) -> int | None:
    """Return the same; None also for a recipe that is too unusual, such as one with a null where veRL has a number."""
    try:
        return training_steps(config)
    except Exception:  # no reason to refuse the run
        return None


def tasks_of(config: DictConfig, files: str) -> list[Task]:
    """Return the recipe's tasks; none if they cannot be read."""
    try:
        return load_selected_tasks(OmegaConf.select(config, files), task_selection(config.data))
    except ArpoError:
        return []
