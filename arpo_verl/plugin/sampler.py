"""Put past successes into groups: the samplers for veRL's `trainer.v1.sampler.custom_sampler`.

They see whole groups before the trainer scores and updates, so a replayed row gets old log-probs and an advantage like
any other. They inject first and store afterwards: a success is never replayed in the step that made it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from arpo_verl.errors import DesktopLostError
from arpo_verl.plugin import queue, rows
from arpo_verl.plugin.checkpoints import restore_store
from arpo_verl.plugin.job_desktops import JobDesktops
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.padding import MiniBatches
from arpo_verl.plugin.queue import TRAINING, VALIDATION, Batch
from arpo_verl.plugin.run_folder import require_same_packages, require_shared
from arpo_verl.plugin.step_metrics import SCORED_METRICS, StepMetrics, staleness_without
from arpo_verl.plugin.trainer_state import TrainerState, trainer_state
from arpo_verl.plugin.validation_samples import EpisodeLoggers, ValidationSamples
from arpo_verl.records.jumps import JumpDetector
from arpo_verl.records.run_records import RunRecords
from arpo_verl.replay.config import check_filter, check_sampler
from arpo_verl.replay.fingerprint import model_fingerprint
from arpo_verl.replay.groups import Group, Outcome, form_groups, uid_of
from arpo_verl.replay.methods.base import Replay
from arpo_verl.replay.metrics import COUNTS, LEVELS, group_metrics, rollout_metrics, store_metrics
from arpo_verl.replay.planner import ReplayPlanner
from arpo_verl.replay.prefetch import Prefetch
from arpo_verl.replay.rules import check_replayable
from arpo_verl.replay.store.persistence import Fingerprint, save_store
from arpo_verl.replay.store.success_store import Candidate, SuccessStore
from arpo_verl.replay.trajectory import StoredTrajectory

logger = logging.getLogger(__name__)


class Replayer:
    """Does the work of both samplers before and after veRL chooses the groups of a batch.

    Args:
        state: what the parts of the run's trainer share.
        batches_per_step: veRL's `parameter_sync_step`.

    Raises:
        ConfigError: a value in the recipe is wrong, or some node has other packages, or does not see the folder of
            the checkpoints.
        ReplayError: the store to resume from or to start with cannot be read, or belongs to another policy.
    """

    def __init__(self, state: TrainerState, batches_per_step: int = 1) -> None:
        self.state = state
        self.config = state.replay
        check_filter(state.filter_groups)
        self._mini_batches = MiniBatches(state.recipe, state.batch)
        if ray.is_initialized():
            require_same_packages()
            require_shared(Path(state.resume.default_local_dir).absolute(), "trainer.default_local_dir")
        self.records = RunRecords(state.agent, state.groups)
        self.validation_samples = ValidationSamples(
            state.sampler.log_val_episodes,
            EpisodeLoggers(state.recipe.trainer.logger, state.agent.recorded_in),
            lambda token_ids: self.inputs.tokenizer.decode(token_ids, skip_special_tokens=True),
        )
        state.watch.start()
        self.desktops = JobDesktops(state.environment)
        self._step, self._draw = 0, 0
        self._step_metrics = StepMetrics(batches_per_step, COUNTS, LEVELS)
        self._played: list[Group] = []
        self._seen: dict[str, Group] = {}
        self._evicted: list[Group] = []
        # Also a store: a filter may throw groups away for as long as all their rollouts succeed.
        self._rescued = SuccessStore(self.config.capacity_per_task)
        self._jumps = JumpDetector()
        self._prefetch = Prefetch(
            self.config.prefetch,
            lambda keys: rows.read_outcomes(keys, TRAINING),
            self._plan,
            self._rebuild,
        )
        state.before_rollouts = self.settle_prompts_played_again
        self.store = SuccessStore(self.config.capacity_per_task, state.reward_function)
        self._planner = ReplayPlanner(state.replay_method, self.store, self.config, self._check)
        if self.config.enable:
            restore_store(self.store, state.resume, self.config, lambda: self.fingerprint)

    @cached_property
    def inputs(self) -> ModelInputs:
        """Tokenizer and processor, loaded when they are first needed."""
        return ModelInputs.load(self.state.policy, self.state.mm_processor_kwargs)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What this run's trajectories depend on."""
        inputs = self.inputs
        return model_fingerprint(inputs.tokenizer, inputs.processor, inputs.mm_processor_kwargs, self.state.agent)

    def save(self, folder: Path) -> None:
        """Write the store into a checkpoint."""
        save_store(self.store, folder, self.fingerprint)

    def begin(self, step: int) -> None:
        """Note that a batch of training step `step` begins."""
        self.state.watch.moved()
        self._draw = self._draw + 1 if step == self._step else 0
        self._step = step
        self._seen.clear()
        if self._draw == 0:  # a step's means count each rollout once; veRL would weigh its batches by their rows
            self._played.clear()

    def look_ahead(self, keys: list[str]) -> bool:
        """Rebuild one replay that the groups so far need, while others still generate.

        Args:
            keys: the rows of the groups that are complete.

        Returns:
            Whether there was one to rebuild.
        """
        looks_ahead = self.config.enable and self.config.prefetch > 0 and len(self.store) > 0
        return looks_ahead and self._prefetch.rebuild_next(keys)

    def replayed_uids(self, keys: Iterable[str]) -> set[str]:
        """Return the prompts whose groups a replay will make informative if they enter the batch.

        A group stays in the plan until the batch is made, even if it is thrown away: what a group gets depends on the
        groups of its task that were drawn before it.

        Args:
            keys: the rows of the groups that are complete.
        """
        if not self.config.enable:
            return set()
        groups = form_groups(self._prefetch.outcomes(keys))
        self._seen = {group.uid: group for group in groups} | self._seen
        return {replay.outcome.uid for replay in self._plan(groups) if replay.advantage is None}  # others stay alike

    def evicted(self, tags: Mapping[str, Mapping[str, Any]], partition_id: str) -> None:
        """Keep the successes of rows that are about to be thrown away, for the store, which takes them with the next
        batch. Keep their outcomes for the metrics.

        Args:
            tags: the rows' tags, by key.
        """
        groups = form_groups(self._prefetch.outcomes(tags))
        self._evicted += groups
        if self.config.enable:
            drawn_in = {key: int(tag["global_steps"]) for key, tag in tags.items()}
            for group in groups:  # no step trains on them, so they count for the step that drew their prompt
                step = drawn_in[group.outcomes[0].key]
                for success in rows.read_trajectories(self._successes([group]), partition_id, step, drawn_in):
                    self._rescued.add(success)

    def settle_prompts_played_again(self) -> None:
        """Keep the successes of a resumed run's unfinished prompts, and drop the records of their other sessions.

        veRL clears their finished sessions and plays all of them again, under the same uid (0.9.1,
        `trainer/ppo/v1/trainer_base.py: PPOTrainer._reissue_inflight_prompts`).
        """
        tags = queue.tags(TRAINING)
        again = {key for key, tag in tags.items() if tag.get("is_prompt") and tag["status"] in ("pending", "running")}
        of_again = {key: tag for key, tag in tags.items() if uid_of(key) in again}
        finished = {key: tag for key, tag in of_again.items() if tag.get("status") == "success"}
        if finished:
            self.evicted(finished, TRAINING)
            self._prefetch.clear()  # their keys come again
        self.records.drop(again, self._rescued.trajectories())

    def process(self, batch: Batch, metrics: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Replay into the batch, store its successes, and fill it up if sessions are missing.

        Returns:
            The batch, and its metrics with `rollout/*`, `replay/*` and `environment/*`, which veRL logs with the step.
        """
        self.state.watch.moved()
        start_s = time.perf_counter()
        batch, num_episodes, own = self._replay(batch)
        batch, shape = self._mini_batches.form(batch, num_episodes)
        own |= shape
        own["timing_s/replay"] = time.perf_counter() - start_s
        own = self._step_metrics.of_batch(self._draw, own)
        if self._step_metrics.is_last(self._draw):  # the pool counts from one reading to the next
            own |= self.desktops.read()
            if (frontier := self.state.frontier) is not None:
                own |= frontier.metrics()
                self.records.frontier_moved(self._step, frontier.changed())
        return batch, {**metrics, **own}

    def _replay(self, batch: Batch) -> tuple[Batch, int, dict[str, Any]]:
        """Return the batch with its replays, the number of its episodes, and metrics."""
        groups = form_groups(self._prefetch.outcomes(batch.keys))
        rollouts = (*groups, *self._evicted)
        drawn_in = {key: int(tag["global_steps"]) for key, tag in zip(batch.keys, batch.tags, strict=True)}
        plan: tuple[Replay, ...] = ()
        replays: dict[str, StoredTrajectory] = {}
        late: dict[str, Any] = self.state.late_metrics.open(SCORED_METRICS if self.config.enable else [])
        new: list[StoredTrajectory] = []
        if self.config.enable:
            new = rows.read_trajectories(self._successes(groups), batch.partition_id, self._step, drawn_in)
            plan = self._plan(groups)
            batch, replays = self._inject(batch, plan)
            self.state.replay_method.remember(rollouts, self.store.memory)
            for trajectory in (*self._rescued.trajectories(), *new):
                self.store.add(trajectory)
            late |= staleness_without(batch.tags, self._step)
        rows.label(batch, replays, {replay.key: replay.advantage for replay in plan})
        self.records.batch_made(self._step, groups, drawn_in, replays)
        self.state.tell_frontier(self._step, rollouts)
        jumps = self._jumps.find(self._step, rollouts, self.config.success_threshold)
        self.records.jumped(jumps)
        self._played += rollouts
        metrics = {
            **rollout_metrics(self._played),
            "rollout/tasks_jumped": len(jumps),
            **group_metrics(groups, plan, self.config, self._step),
            **store_metrics(self.store, len(self._rescued) + len(new), len(self._rescued)),
            **self._planner.take_counts(),
            "replay/prefetched": self._prefetch.hits,
            "timing_s/replay_ahead": self._prefetch.seconds,
            **late,
        }
        for done in (self._prefetch, self._seen, self._evicted, self._rescued):
            done.clear()
        return batch, sum(len(group.outcomes) for group in groups), metrics

    def _check(self, success: StoredTrajectory) -> None:
        limits = self.state.row_limits(len(self.inputs.tokenizer))
        check_replayable(success, limits, self.inputs.check_stored)

    def _rebuild(self, candidate: Candidate) -> Iterable[dict[str, Any]]:
        """Yield the fields of a success's rows, one row at a time."""
        return rows.rebuild_rows(self.store.trajectory(candidate.serial), self.inputs)

    def _successes(self, groups: Iterable[Group]) -> list[Outcome]:
        """Return the outcomes of the groups that are worth storing."""
        return [outcome for group in groups for outcome in group.outcomes if outcome.is_success(self.config)]

    def _plan(self, groups: tuple[Group, ...]) -> tuple[Replay, ...]:
        """Return the replays of these groups, planned together with all groups that `replayed_uids` has seen."""
        uids = {group.uid for group in groups}
        known = {group.uid: group for group in groups} | self._seen
        plan = self._planner.plan(tuple(known.values()), self._step, self._draw)
        return tuple(replay for replay in plan if replay.outcome.uid in uids)

    def _inject(self, batch: Batch, plan: tuple[Replay, ...]) -> tuple[Batch, dict[str, StoredTrajectory]]:
        """Return the batch with the replays, and the replays by the key of their first row."""
        replays = {}
        for replay in plan:
            trajectory = self.store.trajectory(replay.candidate.serial)
            batch = rows.inject(batch, replay, trajectory, self._prefetch.rebuilt(replay.candidate))
            logger.info("replayed a success of step %d of task %s: %s", trajectory.step, trajectory.task_id, replay.key)
            replays[replay.key] = trajectory
        return batch, replays


class ReplaySampler(ReplayBuffer):
    """The sampler for `trainer.v1.trainer_mode: sync`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_sampler(type(self).__name__, self.trainer_mode)
        state = trainer_state(self.sampler_kwargs)
        self.replayer = Replayer(state, self.trainer_config.get("parameter_sync_step", 1))
        self.poll_interval = state.sampler.poll_interval_s
        # Set as `PPOTrainer._build_replay_buffer` sets it for veRL's own samplers.
        self.sync_refill_failed_groups = bool(state.recipe.trainer.v1.sampler.get("sync_refill_failed_groups", False))
        if state.filter_groups.get("enable"):
            self.filter_groups_metric = state.filter_groups["metric"]
            self.max_inflight_gen_batches = state.filter_groups.get("max_inflight_gen_batches", 1)
        self.gen_batch_size = 1  # the trainer's value if groups are refilled; not used elsewhere
        self._holds_leftovers = self.trainer_mode != "sync"

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Batch, dict[str, Any]]:
        """Sample as veRL does, then call `Replayer.process`. Validation batches stay as they are; some are shown.

        Raises:
            DesktopLostError: all sessions of a validation were lost; veRL would fail on the empty batch.
            ConfigError: a rollout found that the run cannot go on.
        """
        if partition_id == VALIDATION:
            batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
            if not batch.keys:
                raise DesktopLostError(
                    f"validation must have at least one episode, but all sessions of its {batch_size} tasks were "
                    "dropped (the rollout workers' log says why); repair the desktops, then start the same command "
                    "again: it resumes from the last checkpoint"
                )
            self.replayer.validation_samples.show(batch.keys, partition_id, global_steps)
            return batch, metrics
        if self._holds_leftovers:
            self._clear_leftovers(partition_id)
        self.train_batch_size = batch_size  # the mode that reads it has one batch a step
        self.replayer.begin(global_steps)
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        return self.replayer.process(batch, metrics)

    def _clear_leftovers(self, partition_id: str) -> None:
        """Clear rows in a resumed run's queue that were trained on before the checkpoint.

        veRL saves the queue after a batch's prompts have left it, but before it clears the batch. Rows without a prompt
        are never sampled and so never cleared: every later checkpoint would contain them.
        """
        self._holds_leftovers = False
        tags = queue.tags(partition_id)
        prompts = {key for key, tag in tags.items() if tag.get("is_prompt")}
        leftovers = [key for key in tags if key not in prompts and uid_of(key) not in prompts]
        if leftovers:
            queue.clear(leftovers, partition_id)
            logger.info("cleared %d rows that were trained on before the checkpoint", len(leftovers))

    def _sync_metadata_from_transfer_queue(self) -> None:
        """Read the queue as veRL does, in each of its loops, and ask the pool whether the run can go on."""
        super()._sync_metadata_from_transfer_queue()  # type: ignore[no-untyped-call]  # veRL's
        self.replayer.desktops.check()

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """Throw groups away as veRL does (stale ones, those with a failed session, those that a filter removes), but
        keep their successes."""
        if partition_id != VALIDATION:
            tags = {key: tag for key, tag in self.partitions[partition_id].items() if uid_of(key) in uids}
            self.replayer.evicted(tags, partition_id)
        super()._clear_groups(partition_id, uids)

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        """Replay first, then filter: of the groups that veRL finds alike, keep those that get a replay."""
        alike, counts = super()._dapo_filtered_keys(partition_id)
        if partition_id == VALIDATION or self.filter_groups_metric is None or not alike:
            return alike, counts
        alike = alike - self.replayer.replayed_uids(self._complete_rows(partition_id))
        shared = self._dapo_classification_cache[partition_id]
        return alike, Counter(reward for uid in alike if (reward := shared[uid]) is not None)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        """Wait between two looks at the queue as veRL does, unless there is a replay to rebuild."""
        if partition_id != VALIDATION and self.replayer.look_ahead(self._complete_rows(partition_id)):
            return last_debug_time
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _complete_rows(self, partition_id: str) -> list[str]:
        complete = self.finished_keys[partition_id] | self.failure_keys[partition_id]
        return [key for key in self.partitions[partition_id] if uid_of(key) in complete]


class ReplaySamplerAsync(ReplaySampler, ReplayBufferAsync):
    """The sampler for `trainer.v1.trainer_mode: colocate_async` and `separate_async`, over veRL's asynchronous one.

    veRL's staleness limit counts from the step that drew the prompt, so it never drops a replay for its age.
    """
