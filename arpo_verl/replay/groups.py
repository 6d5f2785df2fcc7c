"""Form the groups of rollouts of one task. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from arpo_verl.errors import ReplayError
from arpo_verl.replay.config import ReplayConfig

MIN_GROUP_SIZE = 2
"""A lone rollout is compared with nothing: replacing it would swap data for an advantage of 0."""
FIRST_ADDED = 1_000
"""Session of the first success beside a group. `rollout.n` is smaller, so no rollout's row has its key."""


def uid_of(key: str) -> str:
    """Return the prompt's uid from a row's key, `{uid}_{session}_{index}`."""
    return key.rsplit("_", 2)[0]


def session_of(key: str) -> int:
    """Return the session from a row's key."""
    return int(key.rsplit("_", 2)[1])


def row_key(episode: str, number: int) -> str:
    """Return the key of an episode's row by its number, from 0; `episode` is the key of its first row."""
    return f"{episode.rsplit('_', 1)[0]}_{number}"


def episode_of(key: str) -> str:
    """Return the key of the first row of a row's episode."""
    return f"{key.rsplit('_', 1)[0]}_0"


@dataclass(frozen=True)
class Outcome:
    """The result of a rollout: its rows' keys, and what the agent loop recorded in them."""

    key: str
    """`{uid}_{session}_0`, veRL's key of its first row."""
    task_id: str
    success: float
    """The evaluator's score, from 0 to 1."""
    reward: float
    format_error: bool
    stop_reason: str
    num_turns: int
    num_rows: int = 1
    drawn: int = 0
    """Number of its prompt in the order of the tasks, the same in a rerun."""
    task_content: str = ""
    """See `rules.task_content`; empty if the trainer knows no task."""

    @property
    def rows(self) -> tuple[str, ...]:
        """The keys of its rows, in order."""
        return tuple(row_key(self.key, number) for number in range(self.num_rows))

    @property
    def uid(self) -> str:
        return uid_of(self.key)

    @property
    def session(self) -> int:
        return session_of(self.key)

    def is_success(self, config: ReplayConfig) -> bool:
        """Return whether it is worth storing.

        A solved task whose last reply did not parse is not: group normalisation would teach that reply at full
        strength, whatever the format penalty. The reference does store it.
        """
        return self.success >= config.success_threshold and not self.format_error


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt in a training step, by session. Sessions lost to faults are missing."""

    task_id: str
    outcomes: tuple[Outcome, ...]

    @property
    def uid(self) -> str:
        """The prompt's uid."""
        return self.outcomes[0].uid

    @property
    def mean(self) -> float:
        return statistics.fmean(outcome.success for outcome in self.outcomes)

    @property
    def std(self) -> float:
        """Population standard deviation of the scores."""
        return statistics.pstdev([outcome.success for outcome in self.outcomes])

    def all_failed(self, config: ReplayConfig) -> bool:
        """Return whether it teaches nothing and needs a replay: low spread and low mean of the scores, without the
        format reward. This is the paper's trigger."""
        return self.std < config.std_threshold and self.mean < config.mean_threshold

    def all_solved(self, config: ReplayConfig) -> bool:
        return all(outcome.success >= config.success_threshold for outcome in self.outcomes)


def form_groups(outcomes: Iterable[Outcome]) -> tuple[Group, ...]:
    """Group the rollouts by prompt, members by session, whatever order they arrived in.

    Raises:
        ReplayError: the rollouts of a prompt name several tasks.
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
