"""The rules for what a replay may teach. Every door and every method of replay keeps them. Pure.

A replay enters only above what it is compared with (`gains`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

NO_GAIN = "no_gain"
"""Counts failed groups that get no replay, since none of their task's successes has a reward above theirs."""
_LEAST_GAIN = 1e-5
"""Least gain, as a share of the largest reward: the trainer's float32 cannot tell smaller ones from rounding."""


def gains(reward: float, replaced: float, others: Sequence[float]) -> bool:
    """Return whether a replay's advantage is above 0, for any sigma, and its reward above the one that it replaces.

    A stored reward may come from another reward function or weight than the group's rewards.

    Args:
        reward: the replay's.
        replaced: the reward of the rollout that it replaces.
        others: the rewards of the group's other rollouts; one at least.
    """
    rewards = (reward, replaced, *others)
    if not all(map(math.isfinite, rewards)):
        return False
    return reward - max(replaced, statistics.fmean(others)) > _LEAST_GAIN * max(map(abs, rewards))
