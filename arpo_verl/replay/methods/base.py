"""Define what a replay method decides: which groups get which past successes, where, and with which weight. Pure.

A method is a frozen dataclass whose fields are its options. It overrides what differs from the paper's rule:

    wants           whether a group gets a success
    order           in which order a task's successes are used, and which are too old
    place           in whose place, or beside the group
    token_weight    what factor a replayed token's advantage gets
    remember        what it keeps over steps; a checkpoint has it

Whatever a method decides, a replay keeps the rules of `replay/rules.py`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from arpo_verl.lib.config import check_fields
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import FIRST_ADDED, MIN_GROUP_SIZE, Group, Outcome
from arpo_verl.replay.rules import CHANGED_TASK, NO_GAIN, gains
from arpo_verl.replay.store.success_store import Candidate, SuccessStore

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Replay:
    """A past success that enters a group."""

    outcome: Outcome
    """The rollout that leaves; if the success stands beside the group, its first one, which stays."""
    candidate: Candidate
    """`SuccessStore.trajectory` returns its trajectory."""
    added: int | None = None
    """Number of a success beside the group, from 0; None if it takes the outcome's place."""
    advantage: float | None = None
    """Its own advantage, so that it is no member of the group's statistics; None: it is a member like any other."""

    @property
    def key(self) -> str:
        """The key of its first row."""
        return self.outcome.key if self.added is None else f"{self.outcome.uid}_{FIRST_ADDED + self.added}_0"


@dataclass(frozen=True)
class ReplayMethod:
    """Puts a random success of the task in the place of a random failure, in the groups that it wants."""

    only_replaces: ClassVar[bool] = True
    """Whether a success only takes a failure's place and is trained like any member: then any estimator and both
    trainers, veRL and EasyR1, can work with it."""
    needs_log_probs: ClassVar[bool] = False
    """Whether it compares today's log-probs with those of the policy that wrote a success."""

    def __post_init__(self) -> None:
        check_fields(self, "replay.method_options")

    def wants(self, group: Group, config: ReplayConfig, rng: random.Random) -> bool:
        """Return whether a group of at least two rollouts gets a success, if there is one.

        Args:
            rng: its numbers depend only on seed, step, task and how many groups of the task came before.
        """
        raise NotImplementedError

    def order(
        self, candidates: Sequence[Candidate], store: SuccessStore, step: int, rng: random.Random
    ) -> list[Candidate]:
        """Return a task's successes in the order in which they are used, without those that are too old.

        Args:
            candidates: the distinct ones, oldest first.
        """
        return rng.sample(candidates, len(candidates))

    def place(self, group: Group, queue: list[Candidate], context: Context) -> list[Replay]:
        """Take successes for a group from the queue of its task, and say where each goes."""
        return replace_failure(group, queue, context)

    @property
    def num_added(self) -> int:
        """Most successes beside a group, for an estimate of memory."""
        return 0

    def token_weight(self, ratio: torch.Tensor) -> torch.Tensor | None:
        """Return the factors of replayed tokens' advantages; None for 1.

        Args:
            ratio: (N,), each token's probability under the policy of this step over that of the policy that wrote it.
        """
        return None

    def remember(self, groups: Sequence[Group], memory: list[float]) -> None:
        """Note in `memory`, which the store saves with itself, what a later choice needs of these groups.

        It is called once a batch, after the choice and before successes are stored, with the batch's groups and those
        that were thrown away since the last one, as by `algorithm.filter_groups`.
        """

    def choose(
        self,
        groups: Sequence[Group],
        store: SuccessStore,
        config: ReplayConfig,
        step: int,
        draw: int = 0,
        left_out: Counter[str] | None = None,
    ) -> tuple[Replay, ...]:
        """Choose the replays of a batch. None is used twice.

        The choice depends only on seed, step, draw, store, the tasks and the order in which their groups were drawn. It
        does not depend on the order in which rollouts finished.

        Args:
            draw: number of the batch in the step, from 0; above 0 only if the trainer updates several times a step.
            left_out: gets counts of what the rules left out, by their names there.
        """
        counted: Counter[str] = Counter() if left_out is None else left_out
        queues: dict[tuple[str, str], list[Candidate]] = {}
        seen: Counter[str] = Counter()
        wanted: Counter[str] = Counter()
        replays = []
        for group in sorted(groups, key=lambda group: (group.outcomes[0].drawn, group.uid)):
            name = f"{config.seed}/{step}/{draw}/{group.task_id}"
            seen[group.task_id] += 1
            rng = random.Random(f"{name}/group {seen[group.task_id]}")
            if len(group.outcomes) < MIN_GROUP_SIZE or not self.wants(group, config, rng):
                continue
            task = (group.task_id, group.outcomes[0].task_content)
            if task not in queues:
                candidates = _candidates(store, *task, counted)
                queues[task] = self.order(candidates, store, step, random.Random(name))
            rng = random.Random(f"{name}/{wanted[group.task_id]}")
            wanted[group.task_id] += 1
            replays += self.place(group, queues[task], Context(groups, store, config, step, rng, counted))
        return tuple(replays)


@dataclass(frozen=True)
class Context:
    """What a choice depends on besides the group."""

    groups: Sequence[Group]
    """All groups of the batch that are known."""
    store: SuccessStore
    config: ReplayConfig
    step: int
    rng: random.Random
    left_out: Counter[str]


def replace_failure(group: Group, queue: list[Candidate], context: Context) -> list[Replay]:
    """Take the next success from the queue that is better than a rollout of the group; return nothing if none is.

    A random failure leaves, as in ARPO's paper; its code always replaces the first of the group.
    """
    failures = [outcome for outcome in group.outcomes if outcome.success < context.config.success_threshold]
    has_better = False
    for candidate in queue:
        worse = [outcome for outcome in failures or group.outcomes if outcome.success < candidate.success]
        others = {one.key: [other.reward for other in group.outcomes if other is not one] for one in worse}
        replaceable = [one for one in worse if gains(candidate.reward, one.reward, others[one.key])]
        if replaceable:
            queue.remove(candidate)
            return [Replay(context.rng.choice(replaceable), candidate)]
        has_better = has_better or bool(worse)
    context.left_out[NO_GAIN] += has_better
    return []


def take_beside(queue: list[Candidate], others: Sequence[float], most: int, context: Context) -> list[Candidate]:
    """Take from the queue the first successes whose reward is above the mean of `others`, at most `most`."""
    taken = [one for one in queue if gains(one.reward, min(others), others)][:most]
    context.left_out[NO_GAIN] += bool(queue) and not taken
    queue[:] = [one for one in queue if one not in taken]
    return taken


def weighted_order(candidates: Sequence[Candidate], weights: Sequence[float], rng: random.Random) -> list[Candidate]:
    """Draw all candidates without replacement, each with a chance in proportion to its weight, which is above 0.

    Source: Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006.
    """
    keys = [rng.expovariate(weight) for weight in weights]  # of a power with a small weight only 0 would be left
    return [candidates[place] for place in sorted(range(len(keys)), key=keys.__getitem__)]


def _candidates(store: SuccessStore, task_id: str, content: str, left_out: Counter[str]) -> list[Candidate]:
    """Return the distinct successes of the task's content, oldest first."""
    candidates: list[Candidate] = []
    for candidate in store.candidates(task_id):
        if candidate.fields.get("task_content", "") != content:
            left_out[CHANGED_TASK] += 1
        elif candidate not in candidates:
            candidates.append(candidate)
    return candidates
