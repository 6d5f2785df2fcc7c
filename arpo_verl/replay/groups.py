"""Groups of rollouts of one task: their statistics, and which of their members a past success replaces. Pure."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arpo_verl.errors import ReplayError
from arpo_verl.replay.buffer import StoredTrajectory, SuccessStore
from arpo_verl.replay.config import ReplayConfig

# A lone rollout has no group to be compared with: replacing it would swap data for a zero advantage.
MIN_GROUP_SIZE = 2


@dataclass(frozen=True)
class Outcome:
    """What a rollout came to: the row's key, and what the agent loop recorded in it."""

    key: str
    """`{uid}_{session}_{index}`, veRL's name for the row."""
    task_id: str
    success: float
    """The evaluator's score, in [0, 1]."""
    reward: float
    format_error: bool
    stop_reason: str
    num_steps: int

    @property
    def uid(self) -> str:
        return self.key.rsplit("_", 2)[0]

    @property
    def session(self) -> int:
        return int(self.key.rsplit("_", 2)[1])

    def is_success(self, config: ReplayConfig) -> bool:
        """Whether it is worth storing.

        A solved task whose last reply did not parse is not: group normalisation would teach that reply at full
        strength, whatever the format penalty. The reference stores it.
        """
        return self.success >= config.success_threshold and not self.format_error


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt in one step, by session. Sessions that ended in a fault are missing from it."""

    task_id: str
    outcomes: tuple[Outcome, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(outcome.success for outcome in self.outcomes)

    @property
    def std(self) -> float:
        """Population standard deviation of the scores."""
        return statistics.pstdev([outcome.success for outcome in self.outcomes])

    def all_failed(self, config: ReplayConfig) -> bool:
        """The replay trigger, on scores without the format reward."""
        return self.std < config.std_threshold and self.mean < config.mean_threshold

    def all_solved(self, config: ReplayConfig) -> bool:
        return all(outcome.success >= config.success_threshold for outcome in self.outcomes)


@dataclass(frozen=True)
class Replacement:
    """The row to overwrite, and the past success to write there."""

    outcome: Outcome
    trajectory: StoredTrajectory


def form_groups(outcomes: Iterable[Outcome]) -> tuple[Group, ...]:
    """Group the rollouts by prompt, members by session, whatever order they arrived in.

    Raises:
        ReplayError: a prompt's rollouts name several tasks.
    """
    by_uid: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_uid.setdefault(outcome.uid, []).append(outcome)
    groups = []
    for uid, members in by_uid.items():
        task_ids = sorted({member.task_id for member in members})
        if len(task_ids) > 1:
            raise ReplayError(f"the rollouts of one prompt must be of one task, got {task_ids} under uid {uid}")
        groups.append(Group(task_ids[0], tuple(sorted(members, key=lambda member: member.session))))
    return tuple(groups)


def plan_replacements(
    groups: Sequence[Group], store: SuccessStore, config: ReplayConfig, step: int
) -> tuple[Replacement, ...]:
    """For each all-failed group with a cached success of its task: one random failure, one random success.

    The choice depends on seed, step, task and how many groups of that task came before: not on the order in which
    rollouts finished, and on no state that a checkpoint would have to carry.

    Source: the paper replaces a random failure; the reference always the first of the group.
    """
    replacements = []
    groups_seen: Counter[str] = Counter()
    for group in groups:
        rng = random.Random(f"{config.seed}/{step}/{group.task_id}/{groups_seen[group.task_id]}")
        groups_seen[group.task_id] += 1
        if len(group.outcomes) < MIN_GROUP_SIZE or not group.all_failed(config):
            continue
        failures = [outcome for outcome in group.outcomes if outcome.success < config.success_threshold]
        trajectory = store.choose(group.task_id, rng)
        if trajectory is not None:
            replacements.append(Replacement(rng.choice(failures), trajectory))
    return tuple(replacements)
