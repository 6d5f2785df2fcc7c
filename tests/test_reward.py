"""r = r_t + w * r_f."""

import math

import pytest

from arpo_verl.errors import ConfigError, EvaluatorError
from arpo_verl.reward import compute_score
from arpo_verl.types import Evaluation


@pytest.mark.parametrize(
    ("success", "format_error", "weight", "score"),
    [
        (1.0, 0.0, {}, 1.0),
        (0.0, 0.0, {}, 0.0),
        (0.0, 1.0, {}, -1.0),
        (1.0, 1.0, {}, 0.0),
        (0.0, 1.0, {"format_weight": 0.5}, -0.5),
        (0.25, 1.0, {"format_weight": 0.0}, 0.25),
    ],
)
def test_the_format_reward_is_weighed(success, format_error, weight, score):
    info = {"success": success, "format_error": format_error}
    expected = {"score": score, "success": success, "format_error": format_error}
    assert compute_score("embedded", "text", None, info, **weight) == expected


@pytest.mark.parametrize("info", [None, {}, {"success": 1.0}])
def test_an_episode_without_a_verdict_is_no_reward_of_zero(info):
    with pytest.raises(ConfigError, match="default_agent_loop=gui_agent"):
        compute_score("embedded", "text", None, info)


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, "0.5", None])
def test_a_weight_that_is_none_is_refused(weight):
    """NaN is not negative: every reward was NaN with it."""
    with pytest.raises(ConfigError, match=f"format_weight must be a finite number, not negative, got {weight!r}"):
        compute_score("embedded", "", None, {"success": 0, "format_error": 0}, format_weight=weight)


def test_an_evaluator_may_return_a_number_of_numpy():
    """`np.bool_`, of a comparison of tables, was no score."""
    np = pytest.importorskip("numpy")
    for value in (np.bool_(True), np.float32(1), np.array([1]), True):
        verdict = Evaluation(value, share=value)
        assert (verdict.score, verdict.share) == (1.0, 1.0) and type(verdict.score) is float


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.1, "1", [1.0]])
def test_what_is_no_number_from_0_to_1_is_no_verdict_of_0(value):
    for fields in ({"score": value}, {"score": 0.0, "share": value}):
        with pytest.raises(EvaluatorError, match="a metric must return a number from 0 to 1, got"):
            Evaluation(**fields)
