"""Off-policy correction: weights by hand, and the same gradient as weights on veRL's own loss."""

import math

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.correction import correction_metrics, correction_weights

RATIOS = torch.tensor([[0.25, 0.8, 1.0, 1.5, 4.0]])


def weights(correction, sign=1.0, bound=2.0, ratios=RATIOS):
    config = ReplayConfig(correction=correction, correction_bound=bound)
    return correction_weights(ratios.log(), torch.full_like(ratios, sign), config)[0].tolist()


def test_none_is_the_paper():
    assert weights("none") == [1.0] * 5


def test_truncated_follows_the_ratio_up_to_the_bound_whatever_the_advantage():
    for sign in (1.0, -1.0):
        assert weights("truncated", sign) == pytest.approx([0.25, 0.8, 1.0, 1.5, 2.0])
    assert weights("truncated", bound=5.0) == pytest.approx([0.25, 0.8, 1.0, 1.5, 4.0])


def test_clip_drops_tokens_that_have_moved_far_in_the_advantages_direction_only():
    assert weights("clip", 1.0) == pytest.approx([0.25, 0.8, 1.0, 1.5, 0.0])
    assert weights("clip", -1.0) == pytest.approx([0.0, 0.8, 1.0, 1.5, 2.0])
    assert weights("clip", 1.0, bound=1.2) == pytest.approx([0.25, 0.8, 1.0, 0.0, 0.0])


def test_tokens_that_became_impossible_or_certain_leave_no_infinity():
    extreme = torch.tensor([[1e-30, 1e30]])
    for correction in ("truncated", "clip"):
        assert all(math.isfinite(weight) for weight in weights(correction, -1.0, ratios=extreme))


def policy_gradient(old, maker, advantage, scale, clip_low, clip_high):
    """Of veRL's clipped loss at log-prob `old`, with `maker` as the policy that the ratio is taken to."""
    config = ActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=clip_low,
        clip_ratio_high=clip_high,
    )
    log_prob = old.clone().requires_grad_()
    advantages, mask = torch.full_like(old, advantage) * scale, torch.ones_like(old)
    loss, _ = get_policy_loss_fn("vanilla")(maker, log_prob, advantages, mask, "token-mean", config)
    loss.backward()
    return log_prob.grad


@pytest.mark.parametrize("advantage", [1.7, -0.4])
def test_clip_is_ppos_own_clip_around_the_policy_that_wrote_the_token(advantage):
    """At the policy of this step: the gradient of stock PPO whose old log-probs are the maker's, with a wide range."""
    old = torch.full_like(RATIOS, -1.0)
    maker = old - RATIOS.log()
    wide = policy_gradient(old, maker, advantage, 1.0, clip_low=0.5, clip_high=1.0)
    config = ReplayConfig(correction="clip", correction_bound=2.0)
    scale = correction_weights(old - maker, torch.full_like(old, advantage), config)
    ours = policy_gradient(old, old, advantage, scale, clip_low=0.2, clip_high=0.3)
    if advantage > 0:
        assert ours[0].tolist() == pytest.approx(wide[0].tolist(), abs=1e-6)
    else:
        # Negative tokens of a high ratio weigh most: veRL's dual clip drops them above 3, ours bounds them.
        assert ours[0, :4].tolist() == pytest.approx(wide[0, :4].tolist(), abs=1e-6)


def test_truncated_is_verls_own_truncated_importance_sampling():
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    log_ratio = RATIOS.log()
    stock, _ = compute_rollout_correction_weights(log_ratio, torch.ones_like(RATIOS), "token", 2.0)
    assert weights("truncated") == pytest.approx(stock[0].tolist())


def test_metrics_tell_the_ratio_itself_and_what_the_weights_leave():
    metrics = correction_metrics(RATIOS[0].log(), torch.tensor(weights("truncated")), bound=2.0)
    assert metrics["ratio_mean"] == pytest.approx(7.55 / 5)
    assert metrics["ratio_max"] == pytest.approx(4.0)
    assert metrics["ratio_beyond_bound"] == pytest.approx(2 / 5)
    assert metrics["weight_mean"] == pytest.approx(5.55 / 5)
    squares = 0.25**2 + 0.8**2 + 1 + 1.5**2 + 4
    assert metrics["weight_ess"] == pytest.approx(5.55**2 / (5 * squares))
    flat = correction_metrics(RATIOS[0].log(), torch.ones(5), bound=2.0)
    assert (flat["weight_ess"], flat["weight_std"]) == pytest.approx((1.0, 0.0))
