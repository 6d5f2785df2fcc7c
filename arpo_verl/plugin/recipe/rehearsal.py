"""Let veRL calculate once with the recipe's values, on one row of two tokens. What it refuses here would otherwise fail
in a training step, minutes later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig

_PLAIN_OPTIMIZERS = "torch.optim"
"""Implementations in other packages need parameters on a GPU."""


def rehearsals(actor: ActorConfig, correction: Mapping[str, Any]) -> tuple[Callable[[], object], ...]:
    """Return what to try. Each function raises what veRL raises.

    Args:
        actor: veRL's object of the section `actor_rollout_ref.actor`.
        correction: the section `algorithm.rollout_correction`.
    """
    return lambda: _correct(correction), lambda: _lose(actor), lambda: _optimize(actor.optim)


def _row(value: float) -> torch.Tensor:
    return torch.full((1, 2), value)


def _correct(correction: Mapping[str, Any]) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    names = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")
    options = {name: correction[name] for name in names if name in correction}
    compute_rollout_correction_and_rejection_mask(_row(-1.0), _row(-1.0), _row(1.0), **options)


def _lose(actor: ActorConfig) -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, agg_loss, get_policy_loss_fn

    mode = actor.policy_loss.loss_mode
    if mode in POLICY_LOSS_REGISTRY and mode != "bypass_mode":  # other checks report these two
        get_policy_loss_fn(mode)(
            old_log_prob=_row(-1.0),
            log_prob=_row(-1.0),
            advantages=_row(1.0),
            response_mask=_row(1.0),
            loss_agg_mode=actor.loss_agg_mode,
            config=actor,
            rollout_is_weights=None,
        )
    agg_loss(_row(0.0), _row(1.0), actor.loss_agg_mode, loss_scale_factor=actor.loss_scale_factor)


def _optimize(chosen: Any) -> None:
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup
    from verl.workers.config.optimizer import build_optimizer

    if chosen.optimizer_impl == _PLAIN_OPTIMIZERS:
        optimizer = build_optimizer([torch.nn.Parameter(torch.zeros(1))], chosen)
        if chosen.lr_scheduler_type == "cosine":
            get_cosine_schedule_with_warmup(optimizer, 0, 1, min_lr_ratio=chosen.min_lr_ratio)
