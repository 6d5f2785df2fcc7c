"""Off-policy correction: weights by hand, and what they do to the gradient of veRL's own loss."""

import math
import statistics

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

from verl.trainer.ppo.core_algos import get_policy_loss_fn  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402

from arpo_verl.replay.config import ReplayConfig  # noqa: E402
from arpo_verl.replay.correction import correction_metrics, correction_weights  # noqa: E402

RATIOS = torch.tensor([[0.25, 0.8, 1.0, 1.5, 4.0]])


def weights(correction, bound=2.0):
    config = ReplayConfig(correction=correction, correction_bound=bound)
    return correction_weights(RATIOS.log(), config)[0].tolist()


def test_none_is_the_paper():
    assert weights("none") == [1.0] * 5


def test_truncated_follows_the_ratio_up_to_the_bound():
    assert weights("truncated") == pytest.approx([0.25, 0.8, 1.0, 1.5, 2.0])
    assert weights("truncated", bound=5.0) == pytest.approx([0.25, 0.8, 1.0, 1.5, 4.0])


def test_tokens_that_became_impossible_or_certain_leave_no_infinity():
    log_ratio = torch.tensor([-100.0, 100.0])
    weights = correction_weights(log_ratio, ReplayConfig(correction="truncated", correction_bound=1e30))
    metrics = correction_metrics(log_ratio, weights, bound=1e30)
    assert all(math.isfinite(value) for value in (*weights.tolist(), *metrics.values()))


@pytest.mark.parametrize("advantage", [1.7, -0.4])
def test_a_weight_on_the_advantage_is_that_weight_on_the_gradient_of_verls_loss(advantage):
    config = ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1)

    def gradient(advantages):
        log_prob = torch.full_like(RATIOS, -1.0).requires_grad_()
        loss, _ = get_policy_loss_fn("vanilla")(
            log_prob.detach(), log_prob, advantages, torch.ones_like(RATIOS), "token-mean", config
        )
        loss.backward()
        return log_prob.grad[0]

    plain, factor = torch.full_like(RATIOS, advantage), torch.tensor(weights("truncated"))
    assert gradient(plain).abs().min() > 0
    assert gradient(plain * factor).tolist() == pytest.approx((gradient(plain) * factor).tolist(), abs=1e-6)


def test_truncated_is_verls_own_truncated_importance_sampling():
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    log_ratio = RATIOS.log()
    stock, _ = compute_rollout_correction_weights(log_ratio, torch.ones_like(RATIOS), "token", 2.0)
    assert weights("truncated") == pytest.approx(stock[0].tolist())


def test_metrics_tell_the_ratio_itself_and_what_the_weights_leave():
    metrics = correction_metrics(RATIOS[0].log(), torch.tensor(weights("truncated")), bound=2.0)
    assert metrics["ratio_mean"] == pytest.approx(7.55 / 5)
    assert metrics["ratio_max"] == pytest.approx(4.0)
    assert metrics["ratio_std"] == pytest.approx(statistics.pstdev(RATIOS[0].tolist()))
    assert metrics["ratio_beyond_bound"] == pytest.approx(2 / 5)
    assert metrics["weight_mean"] == pytest.approx(5.55 / 5)
    assert metrics["weight_std"] == pytest.approx(statistics.pstdev(weights("truncated")))
    squares = 0.25**2 + 0.8**2 + 1 + 1.5**2 + 4
    assert metrics["weight_ess"] == pytest.approx(5.55**2 / (5 * squares))
    flat = correction_metrics(RATIOS[0].log(), torch.ones(5), bound=2.0)
    assert (flat["weight_ess"], flat["weight_std"]) == pytest.approx((1.0, 0.0))


def test_a_ratio_at_the_bound_is_not_beyond_it():
    at = correction_metrics(torch.tensor([2.0, 0.5, 1.0]).log(), torch.ones(3), bound=2.0)
    assert at["ratio_beyond_bound"] == 0
    assert correction_metrics(torch.tensor([2.01, 0.49, 1.0]).log(), torch.ones(3), 2.0)["ratio_beyond_bound"] > 0.6


def test_few_light_weights_have_their_share_of_the_tokens_too():
    assert correction_metrics(torch.zeros(2), torch.tensor([0.1, 0.0]), 2.0)["weight_ess"] == pytest.approx(0.5)
