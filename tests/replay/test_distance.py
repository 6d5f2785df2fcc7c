"""How far replays are from the policy, by hand."""

import math
import statistics

import pytest

torch = pytest.importorskip("torch")

from arpo_verl.replay.distance import ratio_metrics  # noqa: E402

RATIOS = torch.tensor([0.25, 0.8, 1.0, 1.5, 4.0])


def test_metrics_tell_the_ratio():
    metrics = ratio_metrics(RATIOS.log())
    assert metrics["ratio_mean"] == pytest.approx(7.55 / 5)
    assert metrics["ratio_max"] == pytest.approx(4.0)
    assert metrics["ratio_std"] == pytest.approx(statistics.pstdev(RATIOS.tolist()))
    assert metrics["ratio_beyond_bound"] == pytest.approx(2 / 5)


def test_tokens_that_became_impossible_or_certain_leave_no_infinity():
    assert all(math.isfinite(value) for value in ratio_metrics(torch.tensor([-100.0, 100.0])).values())


def test_a_ratio_at_the_bound_is_not_beyond_it():
    assert ratio_metrics(torch.tensor([2.0, 0.5, 1.0]).log())["ratio_beyond_bound"] == 0
    assert ratio_metrics(torch.tensor([2.01, 0.49, 1.0]).log())["ratio_beyond_bound"] > 0.6
