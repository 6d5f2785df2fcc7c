"""Frontier sampling: which task comes next, by how likely a group of its rollouts is to teach anything.

A group teaches only where its rollouts differ: tasks that the policy never solves, or always, cost desktops for
nothing. What each task's rollouts came to is kept as a Beta posterior of its success rate, whose evidence halves every
`half_life_steps` training steps, since the policy moves. A task's weight is the probability that its next group holds
both a success and a failure. Hence tasks near the middle come more often; one that always fails cools down, and comes
back as that evidence fades; one that is solved keeps a floor. Pure, and deterministic by its seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from arpo_verl.config import check_fields, number
from arpo_verl.intervals import wilson_interval

PRIOR = 0.5
"""Successes and failures that each task begins with: Jeffreys' prior, which expects most rates near 0 or 1."""
_FAILING, _SOLVED = 0.1, 0.9
"""Rates below and above which a task is counted as failing, as solved."""


@dataclass(frozen=True)
class FrontierConfig:
    """The recipe's section `data.tasks.frontier`."""

    half_life_steps: Annotated[float, number(lambda x: x > 0, "more than 0 training steps")] = 20.0
    """Training steps after which a rollout counts half. Shorter follows a policy that learns fast, and tries the tasks
    that always failed more often; longer knows more of tasks that are drawn seldom."""
    floor: Annotated[float, number(lambda x: 0 < x <= 1, "in (0, 1]")] = 0.05
    """Least weight of a task, where the most is 1: no task is forgotten, and what is solved stays watched. 1 draws all
    equally often."""

    def __post_init__(self) -> None:
        check_fields(self, "data.tasks.frontier")


@dataclass(frozen=True)
class TaskEstimate:
    """What is thought of a task."""

    task_id: str
    rate: float
    """Mean of the success rate's posterior."""
    low: float
    high: float
    """95% score interval of the rate by the evidence that is left; 0 and 1 where there is none."""
    drawn: int
    """Groups drawn so far."""
    share: float
    """Of the draws to come."""


class Frontier:
    """The tasks of a training run.

    Draws keep to the shares as evenly as can be: each draw gives every task its share as credit, and takes one from the
    task that has most. So a task of share s comes once in about 1/s draws, and nothing is left to luck.

    Args:
        task_ids: all different.
        group_size: rollouts of a group, 2 or more.
        seed: of the order in which equal tasks come; None: another each time.
    """

    def __init__(self, task_ids: Sequence[str], group_size: int, config: FrontierConfig, seed: int | None = None):
        self.config, self._group_size = config, group_size
        self._ids = list(task_ids)
        self._position = {task_id: position for position, task_id in enumerate(self._ids)}
        self._solved = [0.0] * len(self._ids)
        self._failed = [0.0] * len(self._ids)
        self._drawn = [0] * len(self._ids)
        order = random.Random(seed)
        self._credit = [order.random() for _ in self._ids]
        self._step = 0
        self._weights: list[float] | None = None
        """Of the evidence at hand, until it changes."""
        self._changed = set(self._ids)

    @property
    def num_drawn(self) -> int:
        """Of all tasks, since the run began."""
        return sum(self._drawn)

    def draw(self) -> str:
        """The id of the task to play next."""
        shares = self.shares()
        self._credit = [credit + share for credit, share in zip(self._credit, shares, strict=True)]
        position = max(range(len(self._ids)), key=self._credit.__getitem__)
        self._credit[position] -= 1
        self._drawn[position] += 1
        self._changed.add(self._ids[position])
        return self._ids[position]

    def record(self, step: int, task_id: str, num_solved: int, num_failed: int) -> None:
        """Take what a group came to; sessions that a fault ended are in neither number.

        Args:
            step: the training step that has the group; evidence fades as it grows.
            task_id: one of another file is passed over.
        """
        if step > self._step:
            kept = 0.5 ** ((step - self._step) / self.config.half_life_steps)
            self._solved = [count * kept for count in self._solved]
            self._failed = [count * kept for count in self._failed]
            self._step, self._weights = step, None
        position = self._position.get(task_id)
        if position is not None:
            self._solved[position] += num_solved
            self._failed[position] += num_failed
            self._changed.add(task_id)
            self._weights = None

    def shares(self) -> list[float]:
        """Of the draws to come, by task in their order; their sum is 1."""
        weights = self._weigh()
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    def changed(self) -> list[TaskEstimate]:
        """What is thought of the tasks that were drawn or played since the last call; the first time, of all."""
        shares, changed = self.shares(), self._changed
        self._changed = set()
        return [self._estimate(position, shares) for position, task_id in enumerate(self._ids) if task_id in changed]

    def metrics(self) -> dict[str, float]:
        """Return the state as numbers to log; `records/metric_names.py` explains each."""
        chances = [self._informative(position) for position in range(len(self._ids))]
        shares = self.shares()
        rates = [self._rate(position) for position, drawn in enumerate(self._drawn) if drawn]
        return {
            "frontier/expected_informative": math.fsum(s * p for s, p in zip(shares, chances, strict=True)),
            "frontier/expected_uniform": math.fsum(chances) / len(chances),
            "frontier/effective_tasks": 1 / math.fsum(share**2 for share in shares),
            "frontier/tasks_unseen": len(self._ids) - len(rates),
            "frontier/tasks_failing": sum(rate < _FAILING for rate in rates),
            "frontier/tasks_solved": sum(rate > _SOLVED for rate in rates),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, in plain values, by task id."""
        rows = zip(self._solved, self._failed, self._drawn, self._credit, strict=True)
        return {"step": self._step, "tasks": dict(zip(self._ids, map(list, rows), strict=True))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Tasks that it does not know begin as they are; those that are gone are forgotten."""
        self._step, self._weights = state["step"], None
        for task_id, (solved, failed, drawn, credit) in state["tasks"].items():
            position = self._position.get(task_id)
            if position is not None:
                self._solved[position], self._failed[position] = solved, failed
                self._drawn[position], self._credit[position] = drawn, credit

    def _weigh(self) -> list[float]:
        if self._weights is None:
            chances = (self._informative(position) for position in range(len(self._ids)))
            self._weights = [max(self.config.floor, chance) for chance in chances]
        return self._weights

    def _informative(self, position: int) -> float:
        return informative_probability(self._solved[position], self._failed[position], self._group_size)

    def _rate(self, position: int) -> float:
        solved, failed = self._solved[position], self._failed[position]
        return (solved + PRIOR) / (solved + failed + 2 * PRIOR)

    def _estimate(self, position: int, shares: Sequence[float]) -> TaskEstimate:
        solved, total = self._solved[position], self._solved[position] + self._failed[position]
        low, high = wilson_interval(solved / total if total else 0.0, total)
        return TaskEstimate(
            self._ids[position], self._rate(position), low, high, self._drawn[position], shares[position]
        )


def informative_probability(solved: float, failed: float, group_size: int) -> float:
    """That the next group has both a success and a failure, in (0, 1), after so many successes and failures.

    One minus the probabilities that all its rollouts succeed and that all fail, by the Beta-binomial distribution.
    """
    all_solved = all_failed = 1.0
    for number_before in range(group_size):
        total = solved + failed + 2 * PRIOR + number_before
        all_solved *= (solved + PRIOR + number_before) / total
        all_failed *= (failed + PRIOR + number_before) / total
    return 1 - all_solved - all_failed
