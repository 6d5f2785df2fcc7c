"""Compare two measurements of the same tasks: a confidence interval and a test of their difference. Pure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from arpo_verl.lib.intervals import Interval, Z

LEVEL = 0.05
_PRIOR_SPREAD = 0.25
_ALL_FLIPS, _DRAWS = 12, 20_000


@dataclass(frozen=True)
class Paired:
    """Two measurements of the same tasks, compared: the second minus the first."""

    tasks: int
    first: float
    """Success: the mean over the tasks of each task's mean score."""
    second: float
    difference: float
    interval: Interval | None
    """95% interval of the difference over tasks like these; None with fewer than two tasks."""
    p_value: float
    """P-value of the sign-flip test."""
    better: int
    """Number of tasks on which the second's mean is higher."""
    worse: int

    @property
    def told_apart(self) -> bool:
        """Whether both the test and the interval show that the two differ."""
        return self.interval is not None and self.p_value < LEVEL and not self.interval[0] <= 0 <= self.interval[1]


def t_quantile(degrees: int) -> float:
    """Return the 97.5% quantile of Student's t distribution, to three digits.

    Source: Abramowitz and Stegun 26.7.5, exact for one and two degrees of freedom.
    """
    if degrees <= 2:
        return math.tan(0.475 * math.pi) if degrees == 1 else 0.95 / math.sqrt(2 * 0.975 * 0.025)
    z = Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(degrees) ** power for power, term in enumerate(terms, 1))


def pair(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compare the mean scores of the same tasks, in the same order.

    The interval covers the mean difference over tasks like these: t with the tasks' own spread, slightly widened. The
    test flips the sign of each task's difference, as if the two were alike. It is exact up to 12 differing tasks;
    otherwise it uses 20,000 draws with a fixed seed.

    Args:
        first: scores of at least one task, from 0 to 1.

    Source: Miller, "Adding Error Bars to Evals" (arXiv 2411.00640), for paired differences; Fisher's randomisation
        test, as in Dror, Baumer, Shlomov and Reichart (ACL 2018).
    """
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean = fmean(differences)
    return Paired(
        tasks=len(differences),
        first=fmean(first),
        second=fmean(second),
        difference=mean,
        interval=_difference_interval(differences, mean),
        p_value=sign_flip_test(differences),
        better=sum(one > 0 for one in differences),
        worse=sum(one < 0 for one in differences),
    )


def _difference_interval(differences: Sequence[float], mean: float) -> Interval | None:
    n = len(differences)
    if n < 2:
        return None
    spread = sum((one - mean) ** 2 for one in differences) + _PRIOR_SPREAD
    margin = t_quantile(n - 1) * math.sqrt(spread / (n - 1) / n)
    return max(-1.0, mean - margin), min(1.0, mean + margin)


def sign_flip_test(differences: Sequence[float]) -> float:
    """Return the share of sign choices whose sum is at least as far from 0 as the actual one; two-sided."""
    nonzero = [abs(one) for one in differences if one]
    # Sums of the same numbers in another order differ by rounding.
    least = abs(sum(differences)) - 1e-9
    if len(nonzero) <= _ALL_FLIPS:
        return fmean(abs(total) >= least for total in _all_sums(nonzero))
    rng = random.Random(0)
    drawn = (sum(one if rng.random() < 0.5 else -one for one in nonzero) for _ in range(_DRAWS))
    # The actual signs count as one draw, so that no p-value is 0.
    return (1 + sum(abs(total) >= least for total in drawn)) / (1 + _DRAWS)


def _all_sums(values: Sequence[float]) -> Iterator[float]:
    for signs in itertools.product((-1, 1), repeat=len(values)):
        yield math.fsum(sign * value for sign, value in zip(signs, values, strict=True))
