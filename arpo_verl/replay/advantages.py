"""Turn a group's rewards into advantages: centred, and divided by their sigma. Pure; needs only torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

_EPSILON = 1e-6
"""Added to sigma, as in stock GRPO."""


def group_advantages(
    rewards_B: torch.Tensor,
    group_B: Sequence[Any],
    *,
    is_replay_B: Sequence[bool] | None = None,
    std: str = "population",
    divide_by_std: bool = True,
) -> torch.Tensor:
    """Compute A = (r - mean) / (sigma + 1e-6) within each group.

    Args:
        rewards_B: one reward for each trajectory, float.
        group_B: the group of each trajectory, any hashable label.
        is_replay_B: which trajectories are replays; by default none.
        std: `population` (divide by n, the paper's worked example) or `sample` (by n - 1, stock GRPO).
        divide_by_std: False only centres (Dr. GRPO, arXiv 2503.20783).

    Returns:
        Advantages, with the shape and dtype of `rewards_B`. A trajectory alone in its group (its siblings' desktops
        failed) gets 0, since there is nothing to compare it with. Stock GRPO gives it its raw reward: a lone success
        would weigh less than one of eight, and a lone parse error would be punished where a group of them is not.
        Members of a group of equal rewards get exactly 0; stock GRPO gives them up to 0.06 by rounding. A replay gets
        at least 0: a KL penalty in the reward is known only after the replay was chosen for its reward.
    """
    advantages_B = torch.zeros_like(rewards_B)
    for rows in _members(group_B):
        rewards_G = rewards_B[rows]
        # A lone trajectory or equal rewards: in float32 the mean of eight times 0.6 is not 0.6, and dividing the
        # rounding error by a sigma of rounding errors would give an advantage.
        if rewards_G.max() == rewards_G.min():
            continue
        centred_G = rewards_G - torch.mean(rewards_G)
        advantages_B[rows] = centred_G / (_sigma(rewards_G, std) + _EPSILON) if divide_by_std else centred_G
    if is_replay_B is not None:
        advantages_B = torch.where(
            torch.tensor(is_replay_B, device=rewards_B.device), advantages_B.clamp(min=0), advantages_B
        )
    return advantages_B


def _members(group_B: Sequence[Any]) -> Iterable[list[int]]:
    """Return the positions of each group's members."""
    members: dict[Any, list[int]] = {}
    for row, group in enumerate(group_B):
        members.setdefault(group, []).append(row)
    return members.values()


def _sigma(rewards_G: torch.Tensor, std: str) -> torch.Tensor:
    return torch.std(rewards_G, correction=1 if std == "sample" else 0)
