"""The samplers that put past successes into groups that failed: `trainer.v1.sampler.custom_sampler` of veRL.

They see whole groups before the trainer scores and updates on them, so a replayed row gets old log-probs and an
advantage like any other. Injection first, storing after: a success is never replayed into the step that made it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import ray
from omegaconf import DictConfig
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from arpo_verl.config import build_config, check_fields, number, text, whole
from arpo_verl.errors import DesktopLostError
from arpo_verl.plugin import queue, rows
from arpo_verl.plugin.checkpoints import ResumeConfig, restore_store
from arpo_verl.plugin.episode_loggers import EpisodeLoggers
from arpo_verl.plugin.frontier import TRAINING_FRONTIER
from arpo_verl.plugin.handover import LATE_METRICS, TRAINER_FAULT
from arpo_verl.plugin.job_desktops import JobDesktops
from arpo_verl.plugin.model_inputs import ModelInputs, model_fingerprint
from arpo_verl.plugin.padding import BatchShape, MiniBatches
from arpo_verl.plugin.policy_files import PolicyFiles
from arpo_verl.plugin.queue import TRAINING, VALIDATION, Batch
from arpo_verl.plugin.run_records import RunRecords
from arpo_verl.plugin.scored_batch import SCORED_METRICS, staleness_without
from arpo_verl.plugin.sections import plain_section
from arpo_verl.plugin.shared_storage import require_shared
from arpo_verl.plugin.step_metrics import StepMetrics
from arpo_verl.plugin.validation_samples import ValidationSamples
from arpo_verl.replay.choice import Group, Outcome, Replacement, choose_replays, form_groups, uid_of
from arpo_verl.replay.config import ReplayConfig, check_filter, check_sampler
from arpo_verl.replay.metrics import COUNTS, LEVELS, group_metrics, rollout_metrics, store_metrics
from arpo_verl.replay.prefetch import Prefetch
from arpo_verl.replay.store.persistence import Fingerprint, save_store
from arpo_verl.replay.store.success_store import Candidate, SuccessStore
from arpo_verl.replay.trajectory import StoredTrajectory
from arpo_verl.rollout.config import GuiAgentConfig

logger = logging.getLogger(__name__)

_SECTION = "trainer.v1.sampler.sampler_kwargs"


@dataclass(frozen=True)
class SamplerConfig:
    """The recipe's `trainer.v1.sampler.sampler_kwargs`."""

    model_path: Annotated[str, text("the policy's path", "${actor_rollout_ref.model.path}")] = ""
    """`${actor_rollout_ref.model.path}`: by the processor there a replayed row is made anew."""
    replay: Mapping[str, Any] = field(default_factory=dict)
    """`${replay}`."""
    environment: Mapping[str, Any] | None = None
    """`${environment}`: the pool whose metrics are logged with the step, and that is asked whether a rollout found that
    the run cannot go on. None does neither."""
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """`${data.mm_processor_kwargs}`: what the rollout workers give to the processor."""
    tokenizer_path: Annotated[str | None, text("a path, or null for the policy's")] = None
    """`${actor_rollout_ref.model.tokenizer_path}`."""
    custom_chat_template: Annotated[str | None, text("a template, or null for the tokenizer's own")] = None
    """`${actor_rollout_ref.model.custom_chat_template}`."""
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
    filter_groups: Mapping[str, Any] = field(default_factory=dict)
    """`${algorithm.filter_groups}`, which veRL hands to its own samplers only. With `enable`, a group whose members all
    have the same `metric` is thrown away and another prompt drawn, unless a replay makes them differ."""
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
        batches_per_step: veRL's `parameter_sync_step`.

    Raises:
        ConfigError: for a bad value in it, before anything starts; or the checkpoints' folder is not every node's.
        ReplayError: the store to resume with or to begin with cannot be read, or is another policy's.
    """

    def __init__(self, sampler_kwargs: DictConfig | Mapping[str, Any], batches_per_step: int = 1) -> None:
        values = plain_section(_SECTION, sampler_kwargs)
        self.sampler_config = build_config(SamplerConfig, _SECTION, values)
        self.config = build_config(ReplayConfig, "replay", self.sampler_config.replay)
        self._agent = build_config(GuiAgentConfig, "gui_agent", self.sampler_config.gui_agent)
        batch = self.sampler_config.batch
        shape = None if batch is None else build_config(BatchShape, f"{_SECTION}.batch", batch)
        self._mini_batches = None if shape is None else MiniBatches(shape, sampler_kwargs)
        resume = self.sampler_config.resume
        self._resume = None if resume is None else build_config(ResumeConfig, f"{_SECTION}.resume", resume)
        if self._resume is not None and ray.is_initialized():
            require_shared(Path(self._resume.default_local_dir).absolute(), "trainer.default_local_dir")
        self.records = RunRecords(self._agent)
        self.desktops = JobDesktops(self.sampler_config.environment)
        self.validation_samples = ValidationSamples(
            self.sampler_config.log_val_episodes,
            EpisodeLoggers(self.sampler_config.loggers, self._agent.recorded_in),
            lambda token_ids: self.inputs.tokenizer.decode(token_ids, skip_special_tokens=True),
        )
        check_filter(self.sampler_config.filter_groups)
        self._step, self._draw = 0, 0
        self._step_metrics = StepMetrics(batches_per_step, COUNTS, LEVELS)
        self._seen: dict[str, Group] = {}
        self._evicted: list[Group] = []
        self._rescued: list[StoredTrajectory] = []
        self._prefetch = Prefetch(
            self.config.prefetch,
            lambda keys: rows.read_outcomes(keys, TRAINING),
            self._plan,
            self._rebuild,
        )
        self.store = SuccessStore(self.config.capacity_per_task)
        if self.config.enable:
            restore_store(
                self.store, self._resume, self.config.seed_from, lambda: self.fingerprint, self.config.on_bad_store
            )

    @cached_property
    def inputs(self) -> ModelInputs:
        """Tokenizer and processor, loaded with the first injection, restored store or checkpoint."""
        config = self.sampler_config
        policy = PolicyFiles(
            config.model_path, config.tokenizer_path, config.custom_chat_template, config.trust_remote_code
        )
        return ModelInputs.load(policy, config.mm_processor_kwargs)

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
        self._seen.clear()

    def look_ahead(self, keys: list[str]) -> bool:
        """Rebuild a replay that the groups so far want, while others still generate.

        Args:
            keys: the rows of the groups that are complete.

        Returns:
            Whether there was one to rebuild.
        """
        looks_ahead = self.config.enable and self.config.prefetch > 0 and len(self.store) > 0
        return looks_ahead and self._prefetch.rebuild_next(keys)

    def replayed_uids(self, keys: Iterable[str]) -> set[str]:
        """The prompts whose groups a replay will make informative, should they come into the batch.

        A group that was asked about once is part of the plan until the batch is made, also when it is thrown away: what
        one group gets depends on how many of its task came before it, and no group may lose what it was promised.

        Args:
            keys: the rows of the groups that are complete.
        """
        if not self.config.enable:
            return set()
        groups = form_groups(self._prefetch.outcomes(keys))
        self._seen |= {group.uid: group for group in groups if group.uid not in self._seen}
        plan = self._plan(tuple(self._seen.values()))
        return {replay.outcome.uid for replay in plan if replay.candidate.reward != replay.outcome.reward}

    def evicted(self, tags: Mapping[str, Mapping[str, Any]], partition_id: str) -> None:
        """These rows are about to be thrown away: keep their successes for the store, which takes them with the next
        batch's, and their outcomes for the metrics.

        Args:
            tags: of the rows, by key.
        """
        groups = form_groups(self._prefetch.outcomes(tags))
        self._evicted += groups
        if self.config.enable:
            drawn_in = {key: int(tag["global_steps"]) for key, tag in tags.items()}
            for group in groups:  # no step trains on them: they are of the one that drew their prompt
                step = drawn_in[group.outcomes[0].key]
                self._rescued += rows.read_trajectories(self._successes([group]), partition_id, step, drawn_in)

    def process(self, batch: Batch, metrics: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Replay into the batch, store its successes, and fill it up where sessions are missing.

        Returns:
            The batch, and metrics that veRL logs with the step: its own, `rollout/*`, `replay/*`, `environment/*`.
        """
        start_s = time.perf_counter()
        batch, num_episodes, own = self._replay(batch)
        if self._mini_batches is not None:
            batch, shape = self._mini_batches.form(batch, num_episodes)
            own |= shape
        own["timing_s/replay"] = time.perf_counter() - start_s
        own = self._step_metrics.of_batch(self._draw, own)
        if self._step_metrics.is_last(self._draw):  # the pool counts from one reading to the next
            own |= self.desktops.read()
            own |= TRAINING_FRONTIER.metrics()
            if TRAINING_FRONTIER.frontier is not None:
                self.records.frontier_moved(self._step, TRAINING_FRONTIER.frontier.changed())
        return batch, {**metrics, **own}

    def _replay(self, batch: Batch) -> tuple[Batch, int, dict[str, Any]]:
        """Returns the batch with its replays, the number of its episodes, and metrics."""
        groups = form_groups(self._prefetch.outcomes(batch.keys))
        drawn_in = {key: int(tag["global_steps"]) for key, tag in zip(batch.keys, batch.tags, strict=True)}
        replacements: tuple[Replacement, ...] = ()
        replays: dict[str, StoredTrajectory] = {}
        late: dict[str, Any] = LATE_METRICS.open(SCORED_METRICS if self.config.enable else [])
        num_stored = num_rescued = 0
        if self.config.enable:
            new = rows.read_trajectories(self._successes(groups), batch.partition_id, self._step, drawn_in)
            replacements = self._plan(groups)
            batch, replays = self._inject(batch, replacements)
            for trajectory in (*self._rescued, *new):
                self.store.add(trajectory)
            num_rescued, num_stored = len(self._rescued), len(self._rescued) + len(new)
            late |= staleness_without(batch.tags, self._step)
        rows.label(batch, replays)
        self.records.batch_made(self._step, groups, drawn_in, replays)
        ahead = {"replay/prefetched": self._prefetch.hits, "timing_s/replay_ahead": self._prefetch.seconds}
        rollouts = (*groups, *self._evicted)
        TRAINING_FRONTIER.record(self._step, rollouts, self.config.success_threshold)
        for done in (self._prefetch, self._seen, self._evicted, self._rescued):
            done.clear()
        metrics = {
            **rollout_metrics(rollouts),
            **group_metrics(groups, replacements, self.config),
            **store_metrics(self.store, num_stored, num_rescued),
            **ahead,
            **late,
        }
        return batch, sum(len(group.outcomes) for group in groups), metrics

    def _rebuild(self, candidate: Candidate) -> Iterable[dict[str, Any]]:
        """The fields of a success's rows, one row at a time."""
        return rows.rebuild_rows(self.store.trajectory(candidate.serial), self.inputs)

    def _successes(self, groups: Iterable[Group]) -> list[Outcome]:
        """What of the groups is worth storing."""
        return [outcome for group in groups for outcome in group.outcomes if outcome.is_success(self.config)]

    def _plan(self, groups: tuple[Group, ...]) -> tuple[Replacement, ...]:
        """The replays of these groups, among all that `replayed_uids` was asked about."""
        uids = {group.uid for group in groups}
        known = {**self._seen, **{group.uid: group for group in groups if group.uid not in self._seen}}
        plan = choose_replays(tuple(known.values()), self.store, self.config, self._step, self._draw)
        return tuple(replacement for replacement in plan if replacement.outcome.uid in uids)

    def _inject(self, batch: Batch, replacements: tuple[Replacement, ...]) -> tuple[Batch, dict[str, StoredTrajectory]]:
        """Returns the batch with the replays, and what they are, by the key of the first row."""
        replays = {}
        for replacement in replacements:
            outcome, trajectory = replacement.outcome, self.store.trajectory(replacement.candidate.serial)
            batch = rows.inject(batch, outcome, trajectory, self._prefetch.rebuilt(replacement.candidate))
            logger.info(
                "replayed a success of step %d into task %s, session %d of %s",
                *(trajectory.step, trajectory.task_id, outcome.session, outcome.uid),
            )
            replays[outcome.key] = trajectory
        return batch, replays


class ReplaySampler(ReplayBuffer):
    """For `trainer.v1.trainer_mode: sync`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_sampler(type(self).__name__, self.trainer_mode)
        self.replayer = Replayer(self.sampler_kwargs, self.trainer_config.get("parameter_sync_step", 1))
        config = self.replayer.sampler_config
        self.poll_interval = config.poll_interval_s
        self.sync_refill_failed_groups = config.sync_refill_failed_groups
        # As `PPOTrainer._build_replay_buffer` does it for veRL's own samplers.
        if config.filter_groups.get("enable"):
            self.filter_groups_metric = config.filter_groups["metric"]
            self.max_inflight_gen_batches = config.filter_groups.get("max_inflight_gen_batches", 1)
        self.gen_batch_size = 1  # what the trainer sets where groups are refilled; not asked for elsewhere
        self._holds_leftovers = self.trainer_mode != "sync"

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Batch, dict[str, Any]]:
        """As veRL samples, and then `Replayer.process`. Validation's passes untouched; some of it is shown.

        Raises:
            DesktopLostError: no session of a validation was left; veRL would fail on the empty batch.
            ConfigError: a rollout found that the run cannot go on.
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
        if self._holds_leftovers:
            self._clear_leftovers(partition_id)
        self.train_batch_size = batch_size  # in the one mode that asks for it a batch is a step's
        self.replayer.begin(global_steps)
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        return self.replayer.process(batch, metrics)

    def _clear_leftovers(self, partition_id: str) -> None:
        """Clear what a resumed run's queue holds of the batch that was trained on before the checkpoint.

        veRL saves the queue before it clears that batch, but after the batch's prompts have left. Rows without a prompt
        are never sampled, and so never cleared; they would go into every checkpoint from then on.
        """
        self._holds_leftovers = False
        tags = queue.tags(partition_id)
        prompts = {key for key, tag in tags.items() if tag.get("is_prompt")}
        leftovers = [key for key in tags if key not in prompts and uid_of(key) not in prompts]
        if leftovers:
            queue.clear(leftovers, partition_id)
            logger.info("cleared %d rows that were trained on before the checkpoint", len(leftovers))

    def _sync_metadata_from_transfer_queue(self) -> None:
        """As veRL looks at the queue, in each of its loops. Why a session failed is not in there: the pool says it, and
        who watches the workers; both say it first."""
        super()._sync_metadata_from_transfer_queue()  # type: ignore[no-untyped-call]  # veRL's
        TRAINER_FAULT.check()
        self.replayer.desktops.check()

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """As veRL throws groups away: stale ones, those of a failed session, those that a filter finds alike. What they
        won is kept."""
        if partition_id != VALIDATION:
            tags = {key: tag for key, tag in self.partitions[partition_id].items() if uid_of(key) in uids}
            self.replayer.evicted(tags, partition_id)
        super()._clear_groups(partition_id, uids)

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        """Replay first, then filter: of the groups that veRL finds alike, those stay that get a replay."""
        alike, counts = super()._dapo_filtered_keys(partition_id)
        if partition_id == VALIDATION or self.filter_groups_metric is None or not alike:
            return alike, counts
        alike = alike - self.replayer.replayed_uids(self._complete_rows(partition_id))
        shared = self._dapo_classification_cache[partition_id]
        return alike, Counter(reward for uid in alike if (reward := shared[uid]) is not None)

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

    veRL's staleness limit counts from when a prompt was drawn, so a replay, however old, is not dropped by it.
    """
