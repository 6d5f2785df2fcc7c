"""The samplers that put past successes into all-failed groups: `trainer.v1.sampler.custom_sampler` of veRL.

They see whole groups before the trainer scores and updates on them, so a replayed row gets old log-probs and an
advantage like any other. Injection first, storing after: a success is never replayed into the step that made it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from arpo_verl.config import build_config, require
from arpo_verl.replay import rows
from arpo_verl.replay.buffer import SuccessStore
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.desktops import DesktopMetrics
from arpo_verl.replay.groups import Replacement, form_groups, plan_replacements
from arpo_verl.replay.inputs import ModelInputs
from arpo_verl.replay.metrics import group_metrics, rollout_metrics, store_metrics

logger = logging.getLogger(__name__)

_VALIDATION = "val"  # veRL's name for validation's partition, which goes through the same sampler


@dataclass(frozen=True)
class SamplerConfig:
    """The recipe's `trainer.v1.sampler.sampler_kwargs`."""

    model_path: str = ""
    """`${actor_rollout_ref.model.path}`: the processor there rebuilds a replayed row's pixel values."""
    replay: Mapping[str, Any] = field(default_factory=dict)
    """`${replay}`."""
    environment: Mapping[str, Any] | None = None
    """`${environment}`: whose desktops' metrics are logged with the step; None logs none."""
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """`${data.mm_processor_kwargs}`: what the rollout workers give to the processor."""
    trust_remote_code: bool = False
    """`${actor_rollout_ref.model.trust_remote_code}`."""
    poll_interval_s: float = 2.0
    """How often veRL asks the queue whether the rollouts are done: its own default. Short steps want less."""

    def __post_init__(self) -> None:
        poll = "trainer.v1.sampler.sampler_kwargs.poll_interval_s"
        require(self.poll_interval_s > 0, poll, "more than 0 seconds", self.poll_interval_s)
        name = "trainer.v1.sampler.sampler_kwargs.model_path"
        require(bool(self.model_path), name, "the policy's path", self.model_path, "${actor_rollout_ref.model.path}")


class Replayer:
    """What both samplers do after veRL chose the groups of a batch.

    Args:
        sampler_kwargs: the recipe's section of this name, as veRL hands it over.

    Raises:
        ConfigError: for a bad value in it, before anything starts.
    """

    def __init__(self, sampler_kwargs: DictConfig | Mapping[str, Any]) -> None:
        if isinstance(sampler_kwargs, DictConfig):
            sampler_kwargs = cast(dict[str, Any], OmegaConf.to_container(sampler_kwargs, resolve=True))
        self.sampler_config = build_config(SamplerConfig, "trainer.v1.sampler.sampler_kwargs", sampler_kwargs)
        self.config = build_config(ReplayConfig, "replay", self.sampler_config.replay)
        self.store = SuccessStore(self.config.capacity_per_task, self.config.capacity_bytes)
        self._desktops = DesktopMetrics(self.sampler_config.environment)

    @cached_property
    def inputs(self) -> ModelInputs:
        """Tokenizer and processor, loaded with the first injection."""
        config = self.sampler_config
        return ModelInputs.load(config.model_path, config.trust_remote_code, config.mm_processor_kwargs)

    def process(self, batch: KVBatchMeta, metrics: dict[str, Any], step: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Replay into the batch and store its successes. Validation's passes untouched.

        Returns:
            The batch, and metrics that veRL logs with the step: its own, `rollout/*`, `replay/*`, `environment/*`.
        """
        if batch.partition_id == _VALIDATION:
            return batch, metrics
        start_s = time.perf_counter()
        own = self._replay(batch, step)
        own["timing_s/replay"] = time.perf_counter() - start_s
        return batch, {**metrics, **own, **self._desktops.read()}

    def _replay(self, batch: KVBatchMeta, step: int) -> dict[str, float]:
        groups = form_groups(rows.read_outcomes(batch))
        replacements: tuple[Replacement, ...] = ()
        num_stored = 0
        if self.config.enable:
            successes = [o for group in groups for o in group.outcomes if o.is_success(self.config)]
            new = rows.read_trajectories(successes, batch.partition_id, step)
            replacements = plan_replacements(groups, self.store, self.config, step)
            self._inject(batch, replacements)
            num_stored = sum(self.store.add(trajectory) for trajectory in new)
        return {
            **rollout_metrics(groups),
            **group_metrics(groups, replacements, self.config),
            **store_metrics(self.store, num_stored),
        }

    def _inject(self, batch: KVBatchMeta, replacements: Sequence[Replacement]) -> None:
        for replacement in replacements:
            key, trajectory = replacement.outcome.key, replacement.trajectory
            rows.overwrite(batch, key, trajectory, self.inputs)
            logger.info("replayed a success of step %d into task %s, row %s", trajectory.step, trajectory.task_id, key)


class ReplaySampler(ReplayBuffer):
    """For `trainer.v1.trainer_mode: sync`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replayer = Replayer(self.sampler_kwargs)
        self.poll_interval = self.replayer.sampler_config.poll_interval_s

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """As veRL samples, and then `Replayer.process`."""
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        return self.replayer.process(batch, metrics, global_steps)


class ReplaySamplerAsync(ReplaySampler, ReplayBufferAsync):
    """For `trainer.v1.trainer_mode: colocate_async` and `separate_async`: the same over veRL's asynchronous sampling.

    veRL's staleness limit counts from when a prompt was drawn, so a replay, however old, is not dropped by it.
    """
