"""Off-policy correction: what a replayed token's gradient is multiplied with. Pure.

veRL's clipped loss is linear in the advantage (for a positive factor), so a factor on a row's advantages is that factor
on its loss and on its gradient.
"""

from __future__ import annotations

import torch

from arpo_verl.replay.config import NONE, ReplayConfig

# exp(20): far beyond any bound, still finite in float32. veRL's own.
_MAX_LOG_RATIO = 20.0


def correction_weights(log_ratio_RT: torch.Tensor, config: ReplayConfig) -> torch.Tensor:
    """The factor of each token by `config.correction`, of the shape of `log_ratio_RT`.

    Args:
        log_ratio_RT: log rho; of each token, its log-prob under the policy of this step less that under the policy
            that wrote it.
    """
    if config.correction == NONE:
        return torch.ones_like(log_ratio_RT)
    return _ratio(log_ratio_RT).clamp(max=config.correction_bound)


def correction_metrics(log_ratio_N: torch.Tensor, weights_N: torch.Tensor, bound: float) -> dict[str, float]:
    """How far replayed tokens are from the policy, and what the correction makes of it.

    `ratio_*` are of rho itself, whatever the correction; `weight_ess` is the effective sample size of the weights as a
    share of the tokens: 1 where all weigh the same.

    Args:
        log_ratio_N: log rho of the N tokens that the policy wrote, N > 0.
        weights_N: their factors.
    """
    ratio_N = _ratio(log_ratio_N)
    return {
        "ratio_mean": ratio_N.mean().item(),
        "ratio_std": ratio_N.std(correction=0).item(),
        "ratio_max": ratio_N.max().item(),
        "ratio_beyond_bound": ((ratio_N > bound) | (ratio_N < 1 / bound)).float().mean().item(),
        "weight_mean": weights_N.mean().item(),
        "weight_std": weights_N.std(correction=0).item(),
        "weight_ess": (weights_N.sum() ** 2 / (weights_N.square().sum() * weights_N.numel()).clamp(min=1e-12)).item(),
    }


def _ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
