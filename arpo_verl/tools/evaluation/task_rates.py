"""Estimates tasks' success rates, from each task's runs and from the other tasks' rates. Pure."""

from __future__ import annotations

import math
from functools import cache

from arpo_verl.tools.evaluation.keep_rule import KeepRule

_SIDES = tuple(0.03125 * 2.0**power for power in range(8))
_GRID = tuple((a, b) for a in _SIDES for b in _SIDES)
"""Beta distributions: from 1/32, where nearly all tasks are never or always solved, to 4, where all are alike."""

Counts = tuple[int, int]
"""Number of runs that solved the task, and of all runs."""


class TaskRates:
    """We model tasks' rates as draws from one beta distribution; before any run, all distributions of a grid are
    equally likely. Runs are added one by one; their order does not matter.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counts] = {}
        self._log_likelihood = [0.0] * len(_GRID)
        self._weights: list[float] | None = None

    def tell(self, task_id: str, solved: bool) -> None:
        """Add one run of a task."""
        before = self.counts(task_id)
        after = self._counts[task_id] = before[0] + solved, before[1] + 1
        change = zip(_log_likelihood(*after), _log_likelihood(*before), strict=True)
        self._log_likelihood = [x + new - old for x, (new, old) in zip(self._log_likelihood, change, strict=True)]
        self._weights = None

    def counts(self, task_id: str) -> Counts:
        return self._counts.get(task_id, (0, 0))

    def chance_kept(self, task_id: str, rule: KeepRule) -> float:
        """Return the probability that all runs will keep the task, given those so far: 0 or 1 if that is settled.

        Source: predictive probability, as in Lee and Liu, Clinical Trials 5 (2008).
        """
        solved, played = self.counts(task_id)
        verdict = rule.verdict(solved, played)
        return self._mean(_chances_kept(solved, played, rule)) if verdict is None else float(verdict)

    def mean_power(self, task_id: str, power: int, *, failing: bool = False) -> float:
        """Return the expected probability that `power` runs all solve the task, or that all fail."""
        return self._mean(_mean_powers(*self.counts(task_id), power, failing))

    def _mean(self, values: tuple[float, ...]) -> float:
        if self._weights is None:
            most = max(self._log_likelihood)
            shares = [math.exp(x - most) for x in self._log_likelihood]
            self._weights = [share / sum(shares) for share in shares]
        return min(1.0, sum(map(float.__mul__, self._weights, values)))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_choices(n: int, k: int) -> float:
    """Return the logarithm of the number of choices of k from n, which is itself too large for floats."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


@cache
def _log_likelihood(solved: int, played: int) -> tuple[float, ...]:
    """Return the log-likelihood of a task's runs for each distribution of the grid, without common terms."""
    return tuple(_log_beta(a + solved, b + played - solved) - _log_beta(a, b) for a, b in _GRID)


@cache
def _chances_kept(solved: int, played: int, rule: KeepRule) -> tuple[float, ...]:
    """Return the beta-binomial probability that the remaining runs bring the successes into `low` to `high`."""
    left = rule.runs - played
    wanted = range(max(0, rule.low - solved), min(left, rule.high - solved) + 1)
    chances = []
    for a, b in _GRID:
        after = a + solved, b + played - solved
        logs = (_log_beta(after[0] + k, after[1] + left - k) - _log_beta(*after) for k in wanted)
        chances.append(sum(math.exp(_log_choices(left, k) + log) for k, log in zip(wanted, logs, strict=True)))
    return tuple(chances)


@cache
def _mean_powers(solved: int, played: int, power: int, failing: bool) -> tuple[float, ...]:
    more = (0, power) if failing else (power, 0)
    return tuple(
        math.exp(
            _log_beta(a + solved + more[0], b + played - solved + more[1]) - _log_beta(a + solved, b + played - solved)
        )
        for a, b in _GRID
    )
