"""The recipe's `algorithm.episode_weight`. It needs neither torch nor veRL, whose import takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arpo_verl.config import one_of, require

TOKENS, EQUAL = EPISODE_WEIGHTS = ("tokens", "equal")


def episode_weight_of(algorithm: Mapping[str, Any] | None) -> str:
    """The recipe's `algorithm.episode_weight`.

    `tokens`: an episode weighs as much as its tokens, veRL's own `token-mean` and the paper's. `equal`: each episode
    the same; long ones, which fail more often, do not dominate the update.

    Raises:
        ConfigError: it is neither.
    """
    weight = TOKENS if algorithm is None else algorithm.get("episode_weight", TOKENS)
    rule = one_of(EPISODE_WEIGHTS)
    require(rule.holds(weight), "algorithm.episode_weight", rule.expected, weight, rule.remedy_for(weight))
    return str(weight)
