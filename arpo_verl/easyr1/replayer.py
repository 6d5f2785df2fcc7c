"""Process a step's episodes before EasyR1 trains on them: replay, store, records and metrics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.conversation import TokenLimits
from arpo_verl.easyr1.episodes import Played
from arpo_verl.easyr1.rows import Row, outcome_of, positions, trajectory_of
from arpo_verl.easyr1.settings import DoorConfig
from arpo_verl.records.jumps import JumpDetector
from arpo_verl.records.run_records import GroupLog, RunRecords
from arpo_verl.replay.groups import form_groups
from arpo_verl.replay.methods import method_that_replaces
from arpo_verl.replay.metrics import group_metrics, rollout_metrics, store_metrics
from arpo_verl.replay.planner import ReplayPlanner
from arpo_verl.replay.rules import RowLimits, check_replayable, reward_function
from arpo_verl.replay.store.persistence import Fingerprint, save_store
from arpo_verl.replay.store.restoring import fill_store
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.replay.trajectory import StoredTrajectory

logger = logging.getLogger(__name__)

STORE_FOLDER = "replay"
"""Folder of the store in a checkpoint."""


class Replayer:
    """Has the store of successes, and injects them.

    Args:
        chat: the policy's tokens.
        fingerprint: model and options that the store's successes need.
        log: each group's rewards and advantages, which the estimator writes.
        limits: most tokens of a row.
    """

    def __init__(
        self, door: DoorConfig, chat: ChatTokenizer, fingerprint: Fingerprint, log: GroupLog, limits: TokenLimits
    ) -> None:
        self._config = door.replay
        self._limits = RowLimits(limits.prompt, limits.response, limits.most, len(chat.tokenizer))
        self._chat = chat
        self._fingerprint = fingerprint
        self._records = RunRecords(door.agent, log)
        self._jumps = JumpDetector()
        arguments = {"environment.partial_credit": door.environment.partial_credit}
        self.store = SuccessStore(door.replay.capacity_per_task, reward_function(None, None, arguments))
        self._method = method_that_replaces(door.replay, "with EasyR1")
        self._planner = ReplayPlanner(self._method, self.store, door.replay, self._check)
        self.replayed: set[str] = set()
        """The keys of the last step's replays."""

    def process(self, played: Sequence[Played], step: int) -> tuple[dict[str, Row], dict[str, Any]]:
        """Return the rows to train on, by their keys, and metrics. New successes are stored after the injection, so
        that none is replayed into its own step."""
        rows = {one.key: Row.of_fault(self._chat) for one in played}
        outcomes, new = [], []
        for place, one in enumerate(played):
            if one.episode is None or one.score is None:
                continue
            rows[one.key] = Row.of_episode(one.episode, one.score)
            outcomes.append(outcome_of(one.key, one.episode, one.score, place))
            if self._config.enable and outcomes[-1].is_success(self._config):
                new.append(trajectory_of(outcomes[-1], one.episode, step))
        groups = form_groups(outcomes)
        plan = self._planner.plan(groups, step) if self._config.enable else ()
        replays = {replay.key: self.store.trajectory(replay.candidate.serial) for replay in plan}
        self.replayed.clear()
        self.replayed |= replays.keys()
        rows |= {key: self._replayed(key, trajectory) for key, trajectory in replays.items()}
        self._method.remember(groups, self.store.memory)
        for trajectory in new:
            self.store.add(trajectory)
        self._records.batch_made(step, groups, dict.fromkeys(rows, step), replays)
        jumps = self._jumps.find(step, groups, self._config.success_threshold)
        self._records.jumped(jumps)
        return rows, {
            **rollout_metrics(groups),
            "rollout/dropped": len(played) - len(outcomes),
            "rollout/tasks_jumped": len(jumps),
            **group_metrics(groups, plan, self._config, step),
            **store_metrics(self.store, len(new)),
            **self._planner.take_counts(),
        }

    def save(self, checkpoint: Path) -> None:
        """Write the store into a checkpoint's folder."""
        if self._config.enable:
            checkpoint.mkdir(parents=True, exist_ok=True)
            save_store(self.store, checkpoint / STORE_FOLDER, self._fingerprint)
            logger.info("saved %d successes in %s", len(self.store), checkpoint)

    def restore(self, checkpoints: Sequence[Path]) -> None:
        """Fill the store from a checkpoint, or with the seeds.

        Args:
            checkpoints: the resumed checkpoint and older ones, newest first; empty at a run's start.

        Raises:
            ReplayError: `fill_store` raises it.
        """
        if self._config.enable:
            places = [checkpoint / STORE_FOLDER for checkpoint in checkpoints]
            fill_store(self.store, places, self._config, lambda: self._fingerprint)

    def _check(self, success: StoredTrajectory) -> None:
        def make_row(*_: object) -> None:
            positions(Row.of_trajectory(success, self._chat), self._chat.builder.processor, self._chat)

        check_replayable(success, self._limits, make_row)

    def _replayed(self, key: str, trajectory: StoredTrajectory) -> Row:
        logger.info("replayed a success of step %d into task %s, row %s", trajectory.step, trajectory.task_id, key)
        return Row.of_trajectory(trajectory, self._chat)
