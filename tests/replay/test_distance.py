"""How far replays are from the policy, by hand."""

import math

import pytest

torch = pytest.importorskip("torch")

from arpo_verl.replay.distance import ratio_metrics  # noqa: E402


@pytest.mark.parametrize(
    ("ratios", "mean", "most", "std", "beyond"),
    [
        ((0.25, 0.8, 1.0, 1.5, 4.0), 1.51, 4.0, 1.3078, 0.4),
        ((2.0, 0.5, 1.0), 3.5 / 3, 2.0, 0.624, 0.0),  # at the bound is not beyond it
        ((2.01, 0.49, 1.0), 3.5 / 3, 2.01, 0.632, 2 / 3),
        ((math.exp(-100), math.exp(100)), math.exp(20) / 2, math.exp(20), math.exp(20) / 2, 1.0),  # nothing is infinite
    ],
)
def test_metrics_tell_the_ratio(ratios, mean, most, std, beyond):
    metrics = ratio_metrics(torch.tensor(ratios, dtype=torch.float64).log())
    expected = {"ratio_mean": mean, "ratio_max": most, "ratio_std": std, "ratio_beyond_bound": beyond}
    assert metrics == pytest.approx(expected, rel=1e-3)
