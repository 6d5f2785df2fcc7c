"""What the parts of the trainer share: the recipe's sections, validated, and what one part leaves for another.

veRL makes sampler and dataset apart, calls the estimator as a function, and runs all three in the trainer's process,
one after the other. It hands each a section of the recipe: `trainer.v1.sampler.sampler_kwargs`, `data`, `algorithm`
(0.9.1, `trainer/ppo/v1/trainer_base.py`). Each section is a node of the one recipe that the process resolved
(`trainer/main_ppo.py: TaskRunnerV1.run`), and OmegaConf's nodes know their root. So each part finds the whole recipe
and the same `TrainerState`, and a recipe says each option once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
from omegaconf import DictConfig, OmegaConf

from arpo_verl.config import ConfigT, build_config, check_fields, number, whole
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.plugin.settings import PolicyFiles, plain_section
from arpo_verl.plugin.trainer_watch import TrainerEngines, TrainerFault
from arpo_verl.records.run_records import GroupLog
from arpo_verl.replay.choice import Group
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.tasks.frontier import Frontier

logger = logging.getLogger(__name__)

SAMPLER_SECTION = "trainer.v1.sampler.sampler_kwargs"


@dataclass(frozen=True)
class SamplerConfig:
    """Holds the recipe's `trainer.v1.sampler.sampler_kwargs`: options that only our samplers use."""

    poll_interval_s: Annotated[float, number(lambda x: x > 0, "more than 0 seconds")] = 2.0
    """How often veRL asks the queue whether the rollouts are done: its own default. Short steps want less."""
    log_val_episodes: Annotated[int, whole(0, "a whole number, or 0 for none")] = 0
    """Episodes of each validation whose film strips go to those of `trainer.logger` that take images, of the same tasks
    every time. 0 shows none."""

    def __post_init__(self) -> None:
        check_fields(self, SAMPLER_SECTION)


@dataclass(frozen=True)
class ResumeConfig:
    """Holds what veRL looks at when it resumes, of the recipe's section `trainer`."""

    default_local_dir: str
    resume_mode: str = "auto"
    resume_from_path: str | None = None


@dataclass(frozen=True)
class BatchShape:
    """Says what a batch is filled up to: what `PPOTrainer._get_required_batch_multiple` reads of the recipe."""

    ppo_mini_batch_size: int
    """Prompts, `actor_rollout_ref.actor.ppo_mini_batch_size`."""
    n: int
    """Sessions a prompt, `actor_rollout_ref.rollout.n`."""

    @property
    def rows(self) -> int:
        """Of a mini-batch, where an episode is one row. The data parallel size divides it
        (`workers/engine_workers.py: train_mini_batch` asserts it)."""
        return self.ppo_mini_batch_size * self.n

    def updates(self, num_episodes: int) -> int:
        """How many mini-batches so many episodes are."""
        return max(1, math.ceil(num_episodes / self.rows))

    def rows_of(self, num_episodes: int, num_rows: int, unit: int) -> int:
        """Of a mini-batch, a multiple of `unit`, so that episodes of several rows are as many mini-batches as they
        would be of one row each."""
        return max(self.rows, unit * math.ceil(num_rows / self.updates(num_episodes) / unit))


class LateMetrics:
    """Holds the metrics of a batch that are known only once its rows are scored.

    veRL logs what `sample()` returns, takes 0-dim tensors for numbers, passes over empty ones, and reads them after the
    update. So the sampler returns empty tensors, and the estimator gives them a value. What is never filled is not
    logged. The other way, what the estimator must know of a row travels in its `uid`: `arpo_verl.replay.labels`.
    """

    def __init__(self) -> None:
        self._cells: dict[str, torch.Tensor] = {}

    def open(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Begin a batch: one empty tensor a name. Those of the batch before are left as they are."""
        self._cells = {name: torch.empty(0, dtype=torch.float64) for name in names}
        return dict(self._cells)

    def fill(self, values: Mapping[str, float]) -> None:
        """Give open metrics their values; other names are passed over."""
        for name, value in values.items():
            if name in self._cells:
                self._cells[name].resize_(()).fill_(value)


class TrainerState:
    """Holds what the parts of one run's trainer share. `trainer_state` finds it. It reads a section when first asked.

    Args:
        recipe: the composed recipe, whole and resolved.

    Raises:
        ConfigError: on reading a section with a bad value.
    """

    def __init__(self, recipe: DictConfig) -> None:
        self.recipe = recipe
        self.groups = GroupLog()
        """The sampler opens it for a batch, the estimator writes it."""
        self.fault = TrainerFault()
        """The watchers of rollout workers and engines report it. The sampler, and what hands out prompts,
        raise it."""
        self.engines = TrainerEngines(self.fault)
        """The loop manager has them watched. The sampler and veRL's patched calls to engines ask about them."""
        self.late_metrics = LateMetrics()
        """The sampler opens them, the estimator fills them."""
        self.frontier: Frontier | None = None
        """What the dataset draws tasks from, and the sampler reports what came of it; None while they come in veRL's
        order. veRL 0.9.1 makes its data sampler itself, random or sequential (`create_rl_sampler`), and takes no other.
        But the trainer fetches each row through the dataset, at the moment when it is to be played, and its
        `StatefulDataLoader` saves and restores a dataset's own state with a checkpoint."""

    @cached_property
    def replay(self) -> ReplayConfig:
        """Section `replay`."""
        if self.recipe.get("replay") is None:
            raise ConfigError("the recipe must have a section `replay`; compose with `- arpo`")
        return self._build(ReplayConfig, "replay")

    @cached_property
    def agent(self) -> GuiAgentConfig:
        """Section `gui_agent`; its defaults where another agent loop plays."""
        return self._build(GuiAgentConfig, "gui_agent")

    @cached_property
    def environment(self) -> EnvironmentConfig | None:
        """Section `environment`; None where another agent loop plays, without desktops of ours."""
        return None if self.recipe.get("environment") is None else self._build(EnvironmentConfig, "environment")

    @cached_property
    def sampler(self) -> SamplerConfig:
        """Section `trainer.v1.sampler.sampler_kwargs`."""
        return self._build(SamplerConfig, SAMPLER_SECTION)

    @cached_property
    def resume(self) -> ResumeConfig:
        """Where the run resumes from."""
        trainer = self.recipe.trainer
        return ResumeConfig(trainer.default_local_dir, trainer.resume_mode, trainer.resume_from_path)

    @cached_property
    def batch(self) -> BatchShape:
        """As the recipe says it; `MiniBatches` sets another size in it for each batch."""
        model = self.recipe.actor_rollout_ref
        return BatchShape(model.actor.ppo_mini_batch_size, model.rollout.n)

    @property
    def policy(self) -> PolicyFiles:
        """Where tokenizer and processor of the rollout workers are: a replayed row is made with the same."""
        return PolicyFiles.of_recipe(self.recipe)

    @cached_property
    def mm_processor_kwargs(self) -> dict[str, Any]:
        """`data.mm_processor_kwargs`: what the rollout workers give to the processor."""
        return plain_section("data.mm_processor_kwargs", self.recipe.data.get("mm_processor_kwargs") or {})

    @cached_property
    def filter_groups(self) -> dict[str, Any]:
        """`algorithm.filter_groups`, which veRL hands to its own samplers only. With `enable`, a group whose members
        all have the same `metric` is thrown away and another prompt drawn, unless a replay makes them differ."""
        return plain_section("algorithm.filter_groups", self.recipe.algorithm.get("filter_groups") or {})

    def tell_frontier(self, step: int, groups: Iterable[Group]) -> None:
        """Report to the frontier what groups came to as they were played, before any replay; those thrown away too.

        Args:
            step: the training step at hand.
        """
        if self.frontier is not None:
            for group in groups:
                solved = sum(outcome.success >= self.replay.success_threshold for outcome in group.outcomes)
                self.frontier.record(step, group.task_id, solved, len(group.outcomes) - solved)

    def _build(self, cls: type[ConfigT], name: str) -> ConfigT:
        section = OmegaConf.select(self.recipe, name)
        return build_config(cls, name, None if section is None else plain_section(name, section))


_latest = TrainerState(OmegaConf.create())


def trainer_state(section: object) -> TrainerState:
    """Return the state of the run that this section of a recipe belongs to. The first who asks makes it.

    Args:
        section: any node of the recipe, or the recipe itself.

    Raises:
        ConfigError: `section` is no node of a recipe.
    """
    global _latest
    if not isinstance(section, DictConfig):
        raise ConfigError(f"what the trainer hands over must be a section of the recipe, got {section!r}")
    recipe: Any = section._get_root()
    if recipe is not _latest.recipe:
        _latest = TrainerState(recipe)
    return _latest


def running_state() -> TrainerState:
    """Return the state of the run of this process, for a part that has no section of the recipe at hand.

    Before any part has asked by a section it is the state of an empty recipe, which watches nothing.
    """
    return _latest
