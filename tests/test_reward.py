"""r = r_t + w * r_f."""

import pytest

from arpo_verl.errors import ConfigError
from arpo_verl.reward import compute_score


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


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match="must not be negative, got -1"):
        compute_score("embedded", "", None, {"success": 0, "format_error": 0}, format_weight=-1)
