"""The samplers that put past successes into groups that failed: `trainer.v1.sampler.custom_sampler` of veRL.

They see whole groups before the trainer scores and updates on them, so a replayed row gets old log-probs and an
advantage like any other. Injection first, storing after: a success is never replayed into the step that made it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import ray
from omegaconf import DictConfig
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from arpo_verl.config import build_config, check_fields, number, text, whole
from arpo_verl.errors import DesktopLostError
from arpo_verl.plugin import rows
from arpo_verl.plugin.checkpoints import ResumeConfig, restore_store
from arpo_verl.plugin.episode_loggers import EpisodeLoggers
from arpo_verl.plugin.handover import LATE_METRICS
from arpo_verl.plugin.job_desktops import JobDesktops
from arpo_verl.plugin.model_inputs import ModelInputs, model_fingerprint
from arpo_verl.plugin.padding import BatchShape, fill_up
from arpo_verl.plugin.queue import TRAINING, VALIDATION, Batch
from arpo_verl.plugin.run_records import RunRecords
from arpo_verl.plugin.scored_batch import SCORED_METRICS, staleness_without
from arpo_verl.plugin.sections import plain_section
from arpo_verl.plugin.shared_storage import require_shared
from arpo_verl.plugin.validation_samples import ValidationSamples
from arpo_verl.replay.choice import Group, Replacement, choose_replays, form_groups, uid_of
from arpo_verl.replay.config import ReplayConfig, check_sampler
from arpo_verl.replay.metrics import group_metrics, rollout_metrics, store_metrics
from arpo_verl.replay.prefetch import Prefetch
from arpo_verl.replay.store.persistence import Fingerprint, save_store
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.rollout.config import GuiAgentConfig

logger = logging.getLogger(__name__)

_SECTION = "trainer.v1.sampler.sampler_kwargs"


@dataclass(frozen=True)
class SamplerConfig:
    """The recipe's `trainer.v1.sampler.sampler_kwargs`."""

    model_path: Annotated[str, text("the policy's path", "${actor_rollout_ref.model.path}")] = ""
    """`${actor_rollout_ref.model.path}`: the processor there rebuilds a replayed row's pixel values."""
    replay: Mapping[str, Any] = field(default_factory=dict)
    """`${replay}`."""
    environment: Mapping[str, Any] | None = None
    """`${environment}`: whose desktops' metrics are logged with the step; None logs none."""
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """`${data.mm_processor_kwargs}`: what the rollout workers give to the processor."""
    trust_remote_code: bool = False
    """`${actor_rollout_ref.model.trust_remote_code}`."""
    gui_agent: Mapping[str, Any] = field(default_factory=dict)
    """`${gui_agent}`: its prompt and language are part of the store's fingerprint; and where episodes are recorded."""
    batch: Mapping[str, Any] | None = None
    """What a batch is filled up to where sessions were dropped; see `BatchShape`. None leaves it to veRL, whose rows of
    text alone its own Qwen2-VL cannot take."""
    resume: Mapping[str, Any] | None = None
    """Where the trainer resumes from; see `ResumeConfig`. None restores no store."""
    sync_refill_failed_groups: bool = False
    """`${trainer.v1.sampler.sync_refill_failed_groups}`, which veRL hands to its own samplers only: in mode `sync`,
    draw another prompt for a group all of whose sessions were dropped, instead of training on fewer groups."""
    poll_interval_s: Annotated[float, number(lambda x: x > 0, "more than 0 seconds")] = 2.0
    """How often veRL asks the queue whether the rollouts are done: its own default. Short steps want less."""
    log_val_episodes: Annotated[int, whole(0, "a whole number, or 0 for none")] = 0
    """Episodes of each validation whose film strips go to `loggers`, of the same tasks every time. 0 shows none."""
    loggers: str | Sequence[str] = ()
    """`${trainer.logger}`: tensorboard, wandb and swanlab take film strips."""

    def __post_init__(self) -> None:
        check_fields(self, _SECTION)


class Replayer:
    """What both samplers do before and after veRL chose the groups of a batch.

    Args:
        sampler_kwargs: the recipe's section of this name, as veRL hands it over.

    Raises:
        ConfigError: for a bad value in it, before anything starts; or the checkpoints' folder is not every node's.
        ReplayError: the store to resume with or to begin with cannot be read, or is another policy's.
    """

    def __init__(self, sampler_kwargs: DictConfig | Mapping[str, Any]) -> None:
        values = plain_section(_SECTION, sampler_kwargs)
        self.sampler_config = build_config(SamplerConfig, _SECTION, values)
        self.config = build_config(ReplayConfig, "replay", self.sampler_config.replay)
        self._agent = build_config(GuiAgentConfig, "gui_agent", self.sampler_config.gui_agent)
        batch = self.sampler_config.batch
        self._shape = None if batch is None else build_config(BatchShape, f"{_SECTION}.batch", batch)
        resume = self.sampler_config.resume
        self._resume = None if resume is None else build_config(ResumeConfig, f"{_SECTION}.resume", resume)
        if self._resume is not None and ray.is_initialized():
            require_shared(Path(self._resume.default_local_dir).absolute(), "trainer.default_local_dir")
        self.records = RunRecords(self._agent)
        self._desktops = JobDesktops(self.sampler_config.environment)
        self.validation_samples = ValidationSamples(
            self.sampler_config.log_val_episodes,
            EpisodeLoggers(self.sampler_config.loggers, self._agent.recorded_in),
            lambda token_ids: self.inputs.tokenizer.decode(token_ids, skip_special_tokens=True),
        )
        self._step, self._draw = 0, 0
        self._prefetch = Prefetch(
            self.config.prefetch,
            lambda keys: rows.read_outcomes(keys, TRAINING),
            self._plan,
            lambda trajectory: rows.rebuild_fields(trajectory, self.inputs),
        )
        self.store = SuccessStore.of_config(self.config)
        if self.config.enable:
            restore_store(self.store, self._resume, self.config.seed_from, lambda: self.fingerprint)

    @cached_property
    def inputs(self) -> ModelInputs:
        """Tokenizer and processor, loaded with the first injection, restored store or checkpoint."""
        config = self.sampler_config
        return ModelInputs.load(config.model_path, config.trust_remote_code, config.mm_processor_kwargs)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What this run's trajectories are bound to."""
        inputs = self.inputs
        return model_fingerprint(inputs.tokenizer, inputs.processor, inputs.mm_processor_kwargs, self._agent)

    def save(self, folder: Path) -> None:
        """Write the store into a checkpoint."""
        save_store(self.store, folder, self.fingerprint)

    def begin(self, step: int) -> None:
        """A batch of training step `step` is about to come together."""
        self._draw = self._draw + 1 if step == self._step else 0
        self._step = step

    def look_ahead(self, keys: list[str]) -> bool:
        """Rebuild a replay that the groups so far want, while others still generate.

        Args:
            keys: the rows of the groups that are complete.

        Returns:
            Whether there was one to rebuild.
        """
        return self.config.enable and self.config.prefetch > 0 and len(self.store) > 0 and self._prefetch.step(keys)

    def process(self, batch: Batch, metrics: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Replay into the batch, store its successes, and fill it up where sessions are missing.

        Returns:
            The batch, and metrics that veRL logs with the step: its own, `rollout/*`, `replay/*`, `environment/*`.
        """
        start_s = time.perf_counter()
        own = self._replay(batch)
        if self._shape is not None:
            batch = fill_up(batch, self._shape.multiple)
        own["timing_s/replay"] = time.perf_counter() - start_s
        return batch, {**metrics, **own, **self._desktops.read()}

    def _replay(self, batch: Batch) -> dict[str, Any]:
        groups = form_groups(self._prefetch.outcomes(batch.keys))
        drawn_in = {key: int(tag["global_steps"]) for key, tag in zip(batch.keys, batch.tags, strict=True)}
        replacements: tuple[Replacement, ...] = ()
        late: dict[str, Any] = {}
        num_stored = 0
        if self.config.enable:
            successes = [o for group in groups for o in group.outcomes if o.is_success(self.config)]
            new = rows.read_trajectories(successes, batch.partition_id, self._step, drawn_in)
            replacements = self._plan(groups)
            self._inject(batch, replacements)
            num_stored = sum(self.store.add(trajectory) for trajectory in new)
            late = {**LATE_METRICS.open(SCORED_METRICS), **staleness_without(batch.tags, self._step)}
        replays = {replacement.outcome.key: replacement.trajectory for replacement in replacements}
        if self.config.enable or self.records.are_kept:
            rows.label(batch, replays)
        self.records.batch_made(self._step, groups, drawn_in, replays)
        ahead = {"replay/prefetched": self._prefetch.hits, "timing_s/replay_ahead": self._prefetch.seconds}
        self._prefetch.clear()
        return {
            **rollout_metrics(groups),
            **group_metrics(groups, replacements, self.config),
            **store_metrics(self.store, num_stored),
            **ahead,
            **late,
        }

    def _plan(self, groups: tuple[Group, ...]) -> tuple[Replacement, ...]:
        return choose_replays(groups, self.store, self.config, self._step, self._draw)

    def _inject(self, batch: Batch, replacements: tuple[Replacement, ...]) -> None:
        for replacement in replacements:
            key, trajectory = replacement.outcome.key, replacement.trajectory
            rows.inject(batch, key, trajectory, self._prefetch.rebuilt(trajectory))
            self.store.mark_replayed(trajectory)
            logger.info("replayed a success of step %d into task %s, row %s", trajectory.step, trajectory.task_id, key)


class ReplaySampler(ReplayBuffer):
    """For `trainer.v1.trainer_mode: sync`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_sampler(type(self).__name__, self.trainer_mode)
        self.replayer = Replayer(self.sampler_kwargs)
        self.poll_interval = self.replayer.sampler_config.poll_interval_s
        self.sync_refill_failed_groups = self.replayer.sampler_config.sync_refill_failed_groups

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Batch, dict[str, Any]]:
        """As veRL samples, and then `Replayer.process`. Validation's passes untouched; some of it is shown.

        Raises:
            DesktopLostError: no session of a validation was left; veRL would fail on the empty batch.
        """
        if partition_id == VALIDATION:
            batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
            if not batch.keys:
                raise DesktopLostError(
                    f"validation must have at least one episode, but all of its {batch_size} tasks' sessions were "
                    "dropped (why, the rollout workers' log says); mend the desktops, and the same command goes on "
                    "from the last checkpoint"
                )
            self.replayer.validation_samples.show(batch.keys, partition_id, global_steps)
            return batch, metrics
        self.replayer.begin(global_steps)
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        return self.replayer.process(batch, metrics)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        """As veRL waits between two looks at the queue, unless there is something to rebuild meanwhile."""
        if partition_id != VALIDATION and self.replayer.look_ahead(self._complete_rows(partition_id)):
            return last_debug_time
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _complete_rows(self, partition_id: str) -> list[str]:
        complete = self.finished_keys[partition_id] | self.failure_keys[partition_id]
        return [key for key in self.partitions[partition_id] if uid_of(key) in complete]


class ReplaySamplerAsync(ReplaySampler, ReplayBufferAsync):
    """For `trainer.v1.trainer_mode: colocate_async` and `separate_async`: the same over veRL's asynchronous sampling.

    veRL's staleness limit counts from when a prompt was drawn, so a replay, however old, is not dropped by it;
    `replay.max_age_steps` is the limit for replays.
    """
