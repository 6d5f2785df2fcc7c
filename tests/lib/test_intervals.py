import pytest

from arpo_verl.lib.intervals import wilson_interval


def test_the_score_interval_at_known_points():
    # Tables for ten trials; Brown, Cai and DasGupta (2001).
    assert wilson_interval(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson_interval(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(0.0, 0) == (0.0, 1.0)
