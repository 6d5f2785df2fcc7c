"""Define the advantage estimator `replay_grpo`: a group's rewards, centred and divided by the recipe's sigma.

Importing this module registers it with veRL. The sampler has replayed before; a replayed row is a member of its group
like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

from arpo_verl.plugin.settings import EQUAL, episode_weight_of
from arpo_verl.replay.advantages import group_advantages
from arpo_verl.replay.labels import RowLabel, labelled_rows, rows_to_episodes

REPLAY_GRPO = "replay_grpo"


@register_adv_est(REPLAY_GRPO)  # type: ignore[untyped-decorator]  # veRL's
def compute_replay_grpo_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any],
    config: DictConfig | None = None,
    **_unused: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Implement veRL's estimator interface: (B, T) rewards and mask, a group label a row, the section `algorithm`.

    With `replay.enable=false` this is stock GRPO, whatever `replay.std` says. Statistics count episodes: an episode of
    several rows is one member of its group, and all its rows get its advantage.

    Returns:
        Advantages and returns, (B, T), the same tensor, as in stock GRPO.

    Raises:
        ConfigError: `config` is not a section of a recipe.
    """
    # Imported here, since every process of a run imports this module, and only the trainer has a state and a queue.
    from arpo_verl.plugin.step_metrics import ScoredBatch
    from arpo_verl.plugin.trainer_state import trainer_state

    state = trainer_state(config)
    state.watch.moved()
    replay, algorithm = state.replay, state.recipe.algorithm
    divide_by_std = bool(algorithm.get("norm_adv_by_std_in_grpo", True))
    labels = labelled_rows(index)
    last, episodes = rows_to_episodes(index)
    groups = [index[row] for row in last]
    with torch.no_grad():
        # veRL gives the reward to each row of an episode. We use the last row's, as its own `grpo` does.
        rewards_E = token_level_rewards[last].sum(dim=-1)
        if replay.enable:
            is_replay_E = [isinstance(label, RowLabel) and label.is_replay for label in groups]
            own = {i: label.advantage for i, label in labelled_rows(groups).items() if label.advantage is not None}
            advantages_E = group_advantages(
                rewards_E,
                [object() if i in own else label for i, label in enumerate(groups)],
                is_replay_B=is_replay_E,
                std=replay.std,
                divide_by_std=divide_by_std,
            )
            advantages_E[list(own)] = torch.tensor(list(own.values()), dtype=advantages_E.dtype)
        else:
            # One token each, since a rollout correction may have rejected the whole last row of an episode.
            stock_E1, _ = compute_grpo_outcome_advantage(
                token_level_rewards[last],
                response_mask.new_ones(len(last), 1),
                np.array(groups, dtype=object),
                norm_adv_by_std_in_grpo=divide_by_std,
            )
            advantages_E = stock_E1[:, 0]
        advantages_B = advantages_E[episodes]
        batch = ScoredBatch.read(labels, response_mask.shape[-1]) if replay.enable and labels else None
        log_probs = batch.old_log_probs() if batch is not None else None
        state.groups.write(labels, rewards_E[episodes], advantages_B, log_probs)
        advantages_BT = advantages_B.unsqueeze(-1) * response_mask
        if episode_weight_of(algorithm) == EQUAL:
            advantages_BT = advantages_BT * equal_weights(response_mask, episodes, labels).unsqueeze(-1)
        if batch is not None:
            weights = batch.token_weights(state.replay_method)
            for row, weights_T in weights.items():
                advantages_BT[row] *= weights_T
            actor = state.recipe.actor_rollout_ref.actor
            without = batch.metrics_without_replays(token_level_rewards, advantages_BT, response_mask, actor)
            state.late_metrics.fill(batch.metrics_of_replays(advantages_BT, response_mask, weights) | without)
    return advantages_BT, advantages_BT


def equal_weights(response_mask: torch.Tensor, episodes: Sequence[int], labels: Mapping[int, RowLabel]) -> torch.Tensor:
    """Return factors by row, (B,), that give each episode the same weight in veRL's `token-mean`: the mean number of
    tokens of an episode, divided by the episode's own.

    Args:
        response_mask: (B, T).
        episodes: the number of each row's episode.
        labels: the rows that count; padding has no label.
    """
    tokens_B = response_mask.sum(dim=-1).double()
    number_B = torch.tensor(episodes)
    tokens_E = torch.zeros(max(episodes) + 1, dtype=torch.float64).index_add(0, number_B, tokens_B)
    counted = torch.tensor(sorted({episodes[row] for row in labels}), dtype=torch.long)
    mean = tokens_E[counted].mean() if len(counted) else tokens_E.mean()
    return (mean / tokens_E.clamp(min=1))[number_B].to(torch.float32)
