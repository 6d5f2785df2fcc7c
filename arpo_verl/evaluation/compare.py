"""Two evaluations side by side, paired by task. Pure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from arpo_verl.errors import ConfigError
from arpo_verl.evaluation.results import Evaluated
from arpo_verl.evaluation.statistics import scores_by_task, t_quantile
from arpo_verl.evaluation.tables import percent
from arpo_verl.intervals import Interval

LEVEL = 0.05
_PRIOR_SPREAD = 0.25
_ALL_FLIPS, _DRAWS = 12, 20_000
_NAMED = 3


@dataclass(frozen=True)
class Pairing:
    """Two evaluations on the tasks that both have results of, within one turn budget: the second less the first."""

    budget: int
    tasks: int
    first: float
    """Success: the mean over the tasks of each task's mean score."""
    second: float
    difference: float
    interval: Interval | None
    """Of the difference, at 95%, over tasks like these; None for fewer than two."""
    p_value: float
    """The sign-flip test's."""
    better: int
    """Tasks on which the second's mean is higher."""
    worse: int

    @property
    def told_apart(self) -> bool:
        """Whether both the test and the interval say that the two differ."""
        return self.interval is not None and self.p_value < LEVEL and not self.interval[0] <= 0 <= self.interval[1]


@dataclass(frozen=True)
class Comparison:
    """What two evaluations come to beside each other; as text for people."""

    pairings: tuple[Pairing, ...]
    """By turn budget."""
    left_out: tuple[str, ...]
    """What only one of them has, in words."""
    settings: tuple[str, ...]
    """Names of the settings in which they differ."""

    def __str__(self) -> str:
        lines = ["Left out, since only one of the two has it:", *(f"  {one}" for one in self.left_out)]
        lines = lines if self.left_out else []
        if self.settings:
            lines.append(f"Settings that differ: {', '.join(self.settings)}")
        return "\n".join([*lines, *map(_in_words, self.pairings)])


def compare(first: Evaluated, second: Evaluated) -> Comparison:
    """Pair two evaluations by task, within each turn budget that both have.

    The interval is of the mean difference over tasks like these: t with the tasks' own spread, and a little more, as in
    `evaluation.statistics`. The test flips the sign of each task's difference, as it could be were the two alike: exact
    for 12 differing tasks, else by 20,000 draws from a fixed seed.

    Raises:
        ConfigError: they have no task in common within any budget.

    Source: Miller, "Adding Error Bars to Evals" (arXiv 2411.00640), for paired differences; Fisher's randomisation
        test, as in Dror, Baumer, Shlomov and Reichart (ACL 2018).
    """
    budgets = [{result.budget for result in one.results} for one in (first, second)]
    pairings, left_out = [], []
    for budget, number in [(b, 1) for b in budgets[0] - budgets[1]] + [(b, 2) for b in budgets[1] - budgets[0]]:
        left_out.append(f"at most {budget} turns: {_ORDINALS[number - 1]} evaluation alone")
    for budget in sorted(budgets[0] & budgets[1]):
        scores = [scores_by_task(r for r in one.results if r.budget == budget) for one in (first, second)]
        both = [task_id for task_id in scores[0] if task_id in scores[1]]
        left_out += [
            f"at most {budget} turns: {_listed([id for id in its if id not in both])} of {_ORDINALS[number]} alone"
            for number, its in enumerate(scores)
            if len(its) > len(both)
        ]
        if both:
            pairings.append(_pair(budget, *([fmean(its[task_id]) for task_id in both] for its in scores)))
    if not pairings:
        what = "; ".join(left_out) or "neither has a result"
        raise ConfigError(f"two evaluations to compare must have results of the same tasks within one budget: {what}")
    names = sorted({*first.settings, *second.settings})
    differing = tuple(name for name in names if first.settings.get(name) != second.settings.get(name))
    return Comparison(tuple(pairings), tuple(left_out), differing)


_ORDINALS = ("the first", "the second")


def _listed(task_ids: Sequence[str]) -> str:
    more = ", ..." if len(task_ids) > _NAMED else ""
    return f"{len(task_ids)} tasks ({', '.join(task_ids[:_NAMED])}{more})"


def _pair(budget: int, first: Sequence[float], second: Sequence[float]) -> Pairing:
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean = fmean(differences)
    return Pairing(
        budget=budget,
        tasks=len(differences),
        first=fmean(first),
        second=fmean(second),
        difference=mean,
        interval=_interval(differences, mean),
        p_value=sign_flip_test(differences),
        better=sum(one > 0 for one in differences),
        worse=sum(one < 0 for one in differences),
    )


def _interval(differences: Sequence[float], mean: float) -> Interval | None:
    n = len(differences)
    if n < 2:
        return None
    spread = sum((one - mean) ** 2 for one in differences) + _PRIOR_SPREAD
    margin = t_quantile(n - 1) * math.sqrt(spread / (n - 1) / n)
    return max(-1.0, mean - margin), min(1.0, mean + margin)


def sign_flip_test(differences: Sequence[float]) -> float:
    """The share of the ways to sign the differences in which their sum is as far from 0 as it is; two-sided."""
    nonzero = [abs(one) for one in differences if one]
    # Sums of the same numbers in another order are equal but for rounding.
    least = abs(sum(differences)) - 1e-9
    if len(nonzero) <= _ALL_FLIPS:
        return fmean(abs(total) >= least for total in _all_sums(nonzero))
    rng = random.Random(0)
    drawn = (sum(one if rng.random() < 0.5 else -one for one in nonzero) for _ in range(_DRAWS))
    # The signs as they are count as one of the draws: no p-value is 0.
    return (1 + sum(abs(total) >= least for total in drawn)) / (1 + _DRAWS)


def _all_sums(values: Sequence[float]) -> Iterator[float]:
    for signs in itertools.product((-1, 1), repeat=len(values)):
        yield math.fsum(sign * value for sign, value in zip(signs, values, strict=True))


def _in_words(pairing: Pairing) -> str:
    low_high = "no interval for one task"
    if pairing.interval is not None:
        low_high = f"95% interval {_points(pairing.interval[0])} to {_points(pairing.interval[1])}"
    verdict = "not told apart"
    if pairing.told_apart:
        verdict = f"the second is {'better' if pairing.difference > 0 else 'worse'}"
    return (
        f"At most {pairing.budget} turns, {pairing.tasks} tasks of both: {percent(pairing.first)} and "
        f"{percent(pairing.second)}, {_points(pairing.difference)} points ({low_high}; p = {pairing.p_value:.3f}); "
        f"the second is better on {pairing.better}, worse on {pairing.worse}: {verdict}."
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
