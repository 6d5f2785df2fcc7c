"""Measure how far replayed tokens are from the policy that learns from them. Pure."""

from __future__ import annotations

import torch

BOUND = 2.0
"""A token is far off if its ratio is above this, or below its inverse. veRL uses this bound for truncated importance
sampling."""
# exp(20) is far beyond any bound, but finite in float32. veRL uses the same.
_MAX_LOG_RATIO = 20.0


def ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return rho for log rho, at most exp(20) and at least exp(-20)."""
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def ratio_metrics(log_ratio_N: torch.Tensor) -> dict[str, float]:
    """Return mean, spread and maximum of rho, and the share of tokens whose rho is beyond `BOUND`.

    Args:
        log_ratio_N: log rho of the N tokens that the policy wrote, N > 0: a token's log-prob under the policy of this
            step, minus its log-prob under the policy that wrote it.
    """
    ratio_N = ratio(log_ratio_N)
    return {
        "ratio_mean": ratio_N.mean().item(),
        "ratio_std": ratio_N.std(correction=0).item(),
        "ratio_max": ratio_N.max().item(),
        "ratio_beyond_bound": ((ratio_N > BOUND) | (ratio_N < 1 / BOUND)).float().mean().item(),
    }
