"""Frontier sampling chooses the next task by how likely a group of its rollouts is to teach anything.

A group teaches only if its rollouts differ: tasks that the policy never or always solves cost desktops for nothing. For
each task we keep a Beta posterior of its success rate. Its evidence halves every `half_life_steps` training steps,
since the policy changes. A task's weight is the probability that its next group has both a success and a failure. So
tasks near the middle come more often. A task that always fails comes less often, and returns as that evidence fades; a
solved task keeps a least weight. Pure, and deterministic by its seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from arpo_verl.lib.config import check_fields, number
from arpo_verl.lib.intervals import wilson_interval

PRIOR = 0.5
"""Each task begins with so many successes and failures: Jeffreys' prior, which expects most rates near 0 or 1."""
_FAILING, _SOLVED = 0.1, 0.9
"""Below the first rate a task counts as failing, above the second as solved."""


@dataclass(frozen=True)
class FrontierConfig:
    """The recipe's section `data.tasks.frontier`."""

    half_life_steps: Annotated[float, number(lambda x: x > 0, "more than 0 training steps")] = 20.0
    """Training steps after which a rollout counts half. A shorter one follows a policy that learns fast, and retries
    tasks that always failed more often; a longer one keeps more evidence on tasks that are drawn seldom."""
    floor: Annotated[float, number(lambda x: 0 < x <= 1, "in (0, 1]")] = 0.05
    """Least weight of a task; the most is 1. It keeps every task in play, even solved ones. 1 draws all equally
    often."""

    def __post_init__(self) -> None:
        check_fields(self, "data.tasks.frontier")


@dataclass(frozen=True)
class TaskEstimate:
    """The estimate for a task."""

    task_id: str
    rate: float
    """Mean of the success rate's posterior."""
    low: float
    high: float
    """95% score interval of the rate, from the remaining evidence; 0 and 1 without any."""
    drawn: int
    """Groups drawn so far."""
    share: float
    """Share of the future draws."""


class Frontier:
    """Draws the tasks of a training run.

    Draws follow the shares as evenly as possible: each draw adds its share to every task's credit, and takes one from
    the task with the most. So a task with share s comes once in about 1/s draws, without luck.

    Args:
        task_ids: all different.
        group_size: rollouts of a group, 2 or more.
        seed: seed of the order of equal tasks; None takes another order each time.
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
        """The weights from the current evidence, until that changes."""
        self._changed = set(self._ids)

    @property
    def num_drawn(self) -> int:
        """Draws of all tasks since the run began."""
        return sum(self._drawn)

    def draw(self) -> str:
        """Draw the next task, and return its id."""
        shares = self.shares()
        self._credit = [credit + share for credit, share in zip(self._credit, shares, strict=True)]
        position = max(range(len(self._ids)), key=self._credit.__getitem__)
        self._credit[position] -= 1
        self._drawn[position] += 1
        self._changed.add(self._ids[position])
        return self._ids[position]

    def record(self, step: int, task_id: str, num_solved: int, num_failed: int) -> None:
        """Add a group's results; neither number contains sessions that a fault ended.

        Args:
            step: the group's training step; evidence fades as it grows.
            task_id: the group's task; an unknown one is ignored.
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
        """Return the tasks' shares of the future draws, in the tasks' order; their sum is 1."""
        weights = self._weigh()
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    def changed(self) -> list[TaskEstimate]:
        """Return estimates for the tasks that were drawn or played since the last call; the first time, for all."""
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
        """Return all that a resumed run needs, in plain values, by task id."""
        rows = zip(self._solved, self._failed, self._drawn, self._credit, strict=True)
        return {"step": self._step, "tasks": dict(zip(self._ids, map(list, rows), strict=True))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Tasks that it does not know start fresh; tasks that are gone are forgotten."""
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
    """Return the probability that the next group has both a success and a failure, after this many of each.

    It is one minus the probabilities that all rollouts succeed and that all fail, by the Beta-binomial distribution.
    """
    all_solved = all_failed = 1.0
    for number_before in range(group_size):
        total = solved + failed + 2 * PRIOR + number_before
        all_solved *= (solved + PRIOR + number_before) / total
        all_failed *= (failed + PRIOR + number_before) / total
    return 1 - all_solved - all_failed
