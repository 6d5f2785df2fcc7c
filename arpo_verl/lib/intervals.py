"""The confidence interval of a rate. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist

Interval = tuple[float, float]
Z = NormalDist().inv_cdf(0.975)
"""The normal quantile of a 95% interval."""


def wilson_interval(rate: float, trials: float, z: float = Z) -> Interval:
    """Return the score interval of a rate, at 95% by default; (0, 1) after no trials.

    Args:
        trials: may be a fraction, such as an effective sample size. They count as independent.

    Source: Wilson (1927), as in Brown, Cai and DasGupta (2001), who recommend it for few trials.
    """
    if trials == 0:
        return 0.0, 1.0
    z2 = z * z / trials
    centre = (rate + z2 / 2) / (1 + z2)
    margin = z / (1 + z2) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials))
    return max(0.0, centre - margin), min(1.0, centre + margin)
