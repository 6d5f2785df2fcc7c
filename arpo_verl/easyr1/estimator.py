"""Register our advantages as EasyR1's `grpo`, since its trainer takes only names from its own list."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from arpo_verl.easyr1 import stock
from arpo_verl.records.run_records import GroupLog
from arpo_verl.replay.advantages import group_advantages
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import MIN_GROUP_SIZE, uid_of
from arpo_verl.replay.labels import RowLabel


def register_estimator(replay: ReplayConfig, log: GroupLog, replayed: Collection[str]) -> None:
    """Replace EasyR1's `grpo` in this process, which is the trainer's.

    Args:
        replay: with `enable=false`, EasyR1's own function runs, on the groups in our uids.
        log: gets each row's reward and advantage.
        replayed: the uids of the step's replays.
    """

    def estimate(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Sequence[str], **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rewards_B = token_level_rewards.sum(dim=-1)
        advantages_B = row_advantages(rewards_B, response_mask, index, replay, replayed)
        played = {row: RowLabel(uid_of(index[row]), index[row]) for row in _played(response_mask)}
        log.write(played, rewards_B, advantages_B)
        advantages_BT = advantages_B.unsqueeze(-1) * response_mask
        return advantages_BT, advantages_BT

    stock.core_algos.register_adv_estimator("grpo")(estimate)


def row_advantages(
    rewards_B: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[str],
    replay: ReplayConfig,
    replayed: Collection[str],
) -> torch.Tensor:
    """Return the advantage of each row within its group, (B,).

    A row of zero mask stands for an episode that infrastructure failed, and is no member of its group.
    """
    advantages_B = torch.zeros_like(rewards_B)
    rows = _played(response_mask)
    groups = [uid_of(index[row]) for row in rows]
    if replay.enable:
        is_replay = [index[row] in replayed for row in rows]
        advantages_B[rows] = group_advantages(rewards_B[rows], groups, is_replay_B=is_replay, std=replay.std)
        return advantages_B
    # EasyR1's own function refuses a group of one.
    rows = [row for row, group in zip(rows, groups, strict=True) if groups.count(group) >= MIN_GROUP_SIZE]
    if rows:
        labels = np.array([uid_of(index[row]) for row in rows], dtype=object)
        ones = response_mask.new_ones(len(rows), 1)
        advantages_B[rows] = stock.core_algos.compute_grpo_outcome_advantage(
            token_level_rewards=rewards_B[rows].unsqueeze(-1), response_mask=ones, index=labels
        )[0][:, 0]
    return advantages_B


def _played(response_mask: torch.Tensor) -> list[int]:
    """Return the rows that have tokens of the policy."""
    rows: list[int] = response_mask.any(dim=-1).nonzero()[:, 0].tolist()
    return rows
