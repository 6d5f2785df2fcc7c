"""Share the recipe's validated sections, and data, between the parts of the trainer.

veRL makes sampler and dataset separately, calls the estimator as a function, and runs all three in the trainer's
process, one after the other. It gives each a section of the recipe: `trainer.v1.sampler.sampler_kwargs`, `data`,
`algorithm` (0.9.1, `trainer/ppo/v1/trainer_base.py`). Each section is a node of the one recipe that the process
resolved (`trainer/main_ppo.py: TaskRunnerV1.run`), and OmegaConf's nodes know their root. So each part finds the whole
recipe and the same `TrainerState`, and a recipe names each option once.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
from omegaconf import DictConfig, OmegaConf

from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import ConfigT, build_config, check_fields, number, whole
from arpo_verl.plugin.run_watch import RUN_DIR_VARIABLE, RunWatch
from arpo_verl.plugin.settings import PolicyFiles, plain_section
from arpo_verl.records.run_records import GroupLog
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group
from arpo_verl.replay.methods import load_method
from arpo_verl.replay.methods.base import ReplayMethod
from arpo_verl.replay.rules import RowLimits, reward_function
from arpo_verl.tasks.frontier import Frontier

logger = logging.getLogger(__name__)

SAMPLER_SECTION = "trainer.v1.sampler.sampler_kwargs"
_WITHOUT_CALLBACK = (
    "this run has no arpo_verl.plugin.run_callback.RunCallback: nothing checked it before its start, and it has no run "
    "folder with metrics for `arpo-verl view`; add `- arpo` after ppo_trainer to your config's defaults, or "
    "'hydra.searchpath=[pkg://arpo_verl.recipes]' +plugin=arpo to the command line"
)


@dataclass(frozen=True)
class SamplerConfig:
    """The recipe's `trainer.v1.sampler.sampler_kwargs`: options that only our samplers use."""

    poll_interval_s: Annotated[float, number(lambda x: x > 0, "more than 0 seconds")] = 2.0
    """Seconds between two looks for finished rollouts. 2 is veRL's default; lower it for short steps."""
    log_val_episodes: Annotated[int, whole(0, "a whole number, or 0 for none")] = 0
    """Episodes of each validation whose film strips go to those of `trainer.logger` that take images. The tasks are the
    same each time. 0 shows none."""

    def __post_init__(self) -> None:
        check_fields(self, SAMPLER_SECTION)


@dataclass(frozen=True)
class ResumeConfig:
    """What veRL reads of the recipe's section `trainer` when it resumes."""

    default_local_dir: str
    resume_mode: str = "auto"
    resume_from_path: str | None = None


@dataclass(frozen=True)
class BatchShape:
    """The size that a batch is filled up to, as `PPOTrainer._get_required_batch_multiple` reads it from the recipe."""

    ppo_mini_batch_size: int
    """Prompts of an update, `actor_rollout_ref.actor.ppo_mini_batch_size`."""
    n: int
    """Sessions of a prompt, `actor_rollout_ref.rollout.n`."""

    @property
    def rows(self) -> int:
        """Rows of a mini-batch, if each episode is one row. It is a multiple of the data parallel size
        (`workers/engine_workers.py: train_mini_batch` asserts it)."""
        return self.ppo_mini_batch_size * self.n

    def updates(self, num_episodes: int) -> int:
        """Return how many mini-batches so many episodes make."""
        return max(1, math.ceil(num_episodes / self.rows))

    def rows_of(self, num_episodes: int, num_rows: int, unit: int) -> int:
        """Return the rows of a mini-batch, a multiple of `unit`, so that episodes of several rows make as many
        mini-batches as episodes of one row would."""
        return max(self.rows, unit * math.ceil(num_rows / self.updates(num_episodes) / unit))


class LateMetrics:
    """Holds the metrics of a batch that are known only after its rows are scored.

    veRL logs what `sample()` returns. It takes 0-dim tensors as numbers, skips empty ones, and reads them after the
    update. So the sampler returns empty tensors, and the estimator fills them; unfilled ones are not logged. What the
    estimator must know about a row travels in the row's `uid`: see `arpo_verl.replay.labels`.
    """

    def __init__(self) -> None:
        self._cells: dict[str, torch.Tensor] = {}

    def open(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Begin a batch with one empty tensor for each name. Those of the batch before stay as they are."""
        self._cells = {name: torch.empty(0, dtype=torch.float64) for name in names}
        return dict(self._cells)

    def fill(self, values: Mapping[str, float]) -> None:
        """Give open metrics their values; other names are ignored."""
        for name, value in values.items():
            if name in self._cells:
                self._cells[name].resize_(()).fill_(value)


class TrainerState:
    """Holds what the parts of one run's trainer share. `trainer_state` finds it. It reads each section on first use.

    Args:
        recipe: the whole composed recipe, resolved.

    Raises:
        ConfigError: a section that is read has a wrong value.
    """

    def __init__(self, recipe: DictConfig) -> None:
        self.recipe = recipe
        self.groups = GroupLog()
        """The sampler opens it for a batch, and the estimator writes it."""
        self.before_rollouts: Callable[[], None] = lambda: None
        """The sampler sets it, and the loop manager calls it when a resumed run's queue is there and nothing plays."""
        self.late_metrics = LateMetrics()
        """The sampler opens them, and the estimator fills them."""
        self.frontier: Frontier | None = None
        """The dataset draws tasks from it, and the sampler reports the outcomes; None if tasks come in veRL's order.
        veRL 0.9.1 accepts no data sampler but its own, random or sequential (`create_rl_sampler`). But the trainer
        fetches each row through the dataset just before it is played, and its `StatefulDataLoader` saves and restores
        a dataset's own state with a checkpoint."""

    @cached_property
    def replay(self) -> ReplayConfig:
        """The section `replay`."""
        return self._build(ReplayConfig, "replay")

    @cached_property
    def replay_method(self) -> ReplayMethod:
        """What `replay.method` names."""
        return load_method(self.replay)

    @cached_property
    def agent(self) -> GuiAgentConfig:
        """The section `gui_agent`; its defaults with another agent loop."""
        return self._build(GuiAgentConfig, "gui_agent")

    @cached_property
    def watch(self) -> RunWatch:
        """Ends this process when the run cannot go on. Sampler and loop manager start it; each part says when it is
        done with something."""
        return RunWatch(self.agent.stall_timeout_s)

    @cached_property
    def environment(self) -> EnvironmentConfig | None:
        """The section `environment`; None with another agent loop, which uses none of our desktops."""
        return None if self.recipe.get("environment") is None else self._build(EnvironmentConfig, "environment")

    @property
    def reward_function(self) -> str:
        """Name and arguments of the reward function, the same text on every machine."""
        chosen = OmegaConf.select(self.recipe, "reward.custom_reward_function") or {}
        credit = 0.0 if self.environment is None else self.environment.partial_credit
        arguments = {**(chosen.get("reward_kwargs") or {}), "environment.partial_credit": credit}
        return reward_function(chosen.get("name"), chosen.get("path"), arguments)

    @cached_property
    def sampler(self) -> SamplerConfig:
        """The section `trainer.v1.sampler.sampler_kwargs`."""
        return self._build(SamplerConfig, SAMPLER_SECTION)

    @cached_property
    def resume(self) -> ResumeConfig:
        """Where the run may resume from."""
        trainer = self.recipe.trainer
        return ResumeConfig(trainer.default_local_dir, trainer.resume_mode, trainer.resume_from_path)

    @cached_property
    def batch(self) -> BatchShape:
        """The recipe's batch. `MiniBatches` later sets another size in the recipe for each batch."""
        model = self.recipe.actor_rollout_ref
        return BatchShape(model.actor.ppo_mini_batch_size, model.rollout.n)

    @property
    def policy(self) -> PolicyFiles:
        """Tokenizer and processor of the rollout workers; replayed rows are made with the same."""
        return PolicyFiles.of_recipe(self.recipe)

    @cached_property
    def mm_processor_kwargs(self) -> dict[str, Any]:
        """`data.mm_processor_kwargs`, which the rollout workers pass to the processor."""
        return plain_section("data.mm_processor_kwargs", self.recipe.data.get("mm_processor_kwargs") or {})

    @cached_property
    def filter_groups(self) -> dict[str, Any]:
        """`algorithm.filter_groups`, which veRL passes only to its own samplers. With `enable`, a group whose members
        all have the same `metric` is thrown away and another prompt drawn, unless a replay makes them differ."""
        return plain_section("algorithm.filter_groups", self.recipe.algorithm.get("filter_groups") or {})

    def row_limits(self, vocabulary: int) -> RowLimits:
        """Return the limits of a row that this run makes and trains on. A harness's first prompt may fill a row."""
        model = self.recipe.actor_rollout_ref
        prompt, response = model.rollout.prompt_length, model.rollout.response_length
        most = [prompt + response, OmegaConf.select(model, "rollout.max_model_len")]
        for option, split in token_splits(self.recipe).items():
            most.append((OmegaConf.select(model, option) or 0) * split)  # veRL asserts that a row fits
        total = min(filter(None, most))
        return RowLimits(prompt if self.agent.harness is None else total, response, total, vocabulary)

    def tell_frontier(self, step: int, groups: Iterable[Group]) -> None:
        """Report outcomes to the frontier as they were played, before any replay, also of groups thrown away.

        Args:
            step: the current training step.
        """
        if self.frontier is not None:
            for group in groups:
                solved = sum(outcome.success >= self.replay.success_threshold for outcome in group.outcomes)
                self.frontier.record(step, group.task_id, solved, len(group.outcomes) - solved)

    def _build(self, cls: type[ConfigT], name: str) -> ConfigT:
        section = OmegaConf.select(self.recipe, name)
        return build_config(cls, name, None if section is None else plain_section(name, section))


def token_splits(config: DictConfig) -> dict[str, int]:
    """Return the options in `actor_rollout_ref` that limit the tokens of a GPU, each with the number of GPUs that split
    a sequence. Only dynamic batches read them."""
    if not OmegaConf.select(config, "actor_rollout_ref.actor.use_dynamic_bsz"):
        return {}
    splits = dict.fromkeys(("actor.ppo", "rollout.log_prob"), sequence_parallel_size(config))
    splits |= {"ref.log_prob": sequence_parallel_size(config, "ref")} if has_reference(config) else {}
    return {f"{name}_max_token_len_per_gpu": split for name, split in splits.items()}


def sequence_parallel_size(config: DictConfig, role: str = "actor") -> int:
    """Return how many GPUs a sequence is split over (Ulysses). Of veRL's two options the older wins if it is set.

    Args:
        role: `actor`, or `ref` for the reference model.
    """
    section = config.actor_rollout_ref[role]
    older, newer = section.ulysses_sequence_parallel_size, section.fsdp_config.ulysses_sequence_parallel_size
    return int(older if (older or 1) > 1 else newer or 1)


def has_reference(config: DictConfig) -> bool:
    """Return whether a KL term needs a reference model. With LoRA it is the policy without its adapter."""
    model = config.actor_rollout_ref.model
    has_adapter = model.get("lora_rank", 0) > 0 or (model.get("lora") or {}).get("rank", 0) > 0
    has_term = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
    return bool(has_term and not has_adapter and model.get("lora_adapter_path") is None)


_latest = TrainerState(OmegaConf.create())


def trainer_state(section: object) -> TrainerState:
    """Return the state of the run that this section of a recipe belongs to. The first call creates it, and logs what a
    run lacks that plugged our parts in one by one.

    Args:
        section: any node of the recipe, or the recipe itself.

    Raises:
        ConfigError: `section` is not a node of a recipe.
    """
    global _latest
    if not isinstance(section, DictConfig):
        raise ConfigError(f"the trainer's argument must be a section of the recipe, got {section!r}")
    recipe: Any = section._get_root()
    if recipe is not _latest.recipe:
        _latest = TrainerState(recipe)
        if RUN_DIR_VARIABLE not in os.environ:
            logger.warning(_WITHOUT_CALLBACK)
    return _latest
