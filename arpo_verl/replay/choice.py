"""Groups of rollouts of one task: their statistics, and which of their members a past success replaces. Pure."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arpo_verl.errors import ReplayError
from arpo_verl.replay.config import ALL_EQUAL, BELOW_FLOOR, MOST_LIKELY, ReplayConfig
from arpo_verl.replay.store.success_store import Candidate, SuccessStore

# A lone rollout has no group to be compared with: replacing it would swap data for a zero advantage.
MIN_GROUP_SIZE = 2


def uid_of(key: str) -> str:
    """The prompt of a row's key, `{uid}_{session}_{index}`."""
    return key.rsplit("_", 2)[0]


def session_of(key: str) -> int:
    """The session of a row's key."""
    return int(key.rsplit("_", 2)[1])


def row_key(episode: str, number: int) -> str:
    """The key of an episode's row by its number, from 0; `episode` is that of its first."""
    return f"{episode.rsplit('_', 1)[0]}_{number}"


def episode_of(key: str) -> str:
    """The key of the first row of a row's episode."""
    return f"{key.rsplit('_', 1)[0]}_0"


@dataclass(frozen=True)
class Outcome:
    """What a rollout came to: its rows' keys, and what the agent loop recorded in them."""

    key: str
    """`{uid}_{session}_0`, veRL's name for its first row."""
    task_id: str
    success: float
    """The evaluator's score, in [0, 1]."""
    reward: float
    format_error: bool
    stop_reason: str
    num_steps: int
    num_rows: int = 1

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
    def uid(self) -> str:
        """Of the prompt."""
        return self.outcomes[0].uid

    @property
    def mean(self) -> float:
        return statistics.fmean(outcome.success for outcome in self.outcomes)

    @property
    def std(self) -> float:
        """Population standard deviation of the scores."""
        return statistics.pstdev([outcome.success for outcome in self.outcomes])

    def triggers(self, config: ReplayConfig) -> bool:
        """Whether `config.trigger` asks for a replay, on scores without the format reward."""
        if config.trigger == ALL_EQUAL:
            return self.std < config.std_threshold
        if config.trigger == BELOW_FLOOR:
            return self.mean < config.mean_threshold
        return self.all_failed(config)

    def all_failed(self, config: ReplayConfig) -> bool:
        """Whether nothing can be learnt from it: low spread, low mean. The paper's trigger."""
        return self.std < config.std_threshold and self.mean < config.mean_threshold

    def all_solved(self, config: ReplayConfig) -> bool:
        return all(outcome.success >= config.success_threshold for outcome in self.outcomes)


@dataclass(frozen=True)
class Replacement:
    """The rollout whose rows leave, and the past success whose rows come in their place."""

    outcome: Outcome
    candidate: Candidate
    """`SuccessStore.trajectory` gives the trajectory."""


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


def choose_replays(
    groups: Sequence[Group], store: SuccessStore, config: ReplayConfig, step: int, draw: int = 0
) -> tuple[Replacement, ...]:
    """For each group that triggers and has a cached success of its task: one random failure, one success by `choice`.

    No success is used twice, and at most `config.max_share` of the rollouts are replaced. The choice depends on seed,
    step, draw, task and how many groups of that task triggered before: not on the order in which rollouts finished, and
    on no state that a checkpoint would have to carry. More groups only add to it, unless `max_share` is reached.

    Args:
        draw: which batch of the step this is, from 0; several only where the trainer updates several times a step.

    Source: the paper replaces a random failure; the reference always the first of the group.
    """
    queues: dict[str, list[Candidate]] = {}
    triggered: Counter[str] = Counter()
    replacements = []
    for group in groups:
        if len(group.outcomes) < MIN_GROUP_SIZE or not group.triggers(config):
            continue
        name = f"{config.seed}/{step}/{draw}/{group.task_id}"
        if group.task_id not in queues:
            queues[group.task_id] = usable_candidates(store, group.task_id, config, step, random.Random(name))
        rng = random.Random(f"{name}/{triggered[group.task_id]}")
        triggered[group.task_id] += 1
        if rng.random() < config.probability:
            replacements += _replace(group, queues[group.task_id], config, rng)
    return _limit(replacements, groups, config, random.Random(f"{config.seed}/{step}/{draw}"))


def usable_candidates(
    store: SuccessStore, task_id: str, config: ReplayConfig, step: int, rng: random.Random
) -> list[Candidate]:
    """The task's successes, each once, none too old or replayed too often, in the order in which they are used."""
    candidates: list[Candidate] = []
    for candidate in store.candidates(task_id):
        is_young = config.max_age_steps is None or step - candidate.step <= config.max_age_steps
        is_fresh = config.max_replays is None or candidate.use.replays < config.max_replays
        if is_young and is_fresh and candidate not in candidates:
            candidates.append(candidate)
    drawn = rng.sample(candidates, len(candidates))
    if config.choice != MOST_LIKELY:
        return drawn
    # A sort keeps the order of equals.
    return sorted(drawn, key=lambda candidate: candidate.log_prob, reverse=True)


def _replace(group: Group, queue: list[Candidate], config: ReplayConfig, rng: random.Random) -> list[Replacement]:
    """Take the next success from the queue that is better than a rollout of the group; none when there is no such."""
    failures = [outcome for outcome in group.outcomes if outcome.success < config.success_threshold]
    for candidate in queue:
        worse = [outcome for outcome in failures or group.outcomes if outcome.success < candidate.success]
        if worse:
            queue.remove(candidate)
            return [Replacement(rng.choice(worse), candidate)]
    return []


def _limit(
    replacements: Sequence[Replacement], groups: Sequence[Group], config: ReplayConfig, rng: random.Random
) -> tuple[Replacement, ...]:
    # Not one less where the share of the rollouts is a whole number but for rounding.
    limit = int(config.max_share * sum(len(group.outcomes) for group in groups) + 1e-9)
    if len(replacements) <= limit:
        return tuple(replacements)
    # By task, so that the draw does not depend on which group finished first.
    by_task = sorted(range(len(replacements)), key=lambda i: replacements[i].candidate.task_id)
    return tuple(replacements[i] for i in sorted(rng.sample(by_task, limit)))
