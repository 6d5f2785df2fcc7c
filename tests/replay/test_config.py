import math

import pytest

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import build_config
from arpo_verl.replay.config import ReplayConfig


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("enable", "yes", ""),
        ("prefetch", -1, ""),
        ("capacity_per_task", 0, "positive, got 0; set replay.enable=false"),
        ("capacity_per_task", 2.5, ""),
        ("seed_from", 3, ""),
        ("std_threshold", 0.0, ""),
        ("mean_threshold", math.nan, ""),
        ("success_threshold", 1.5, ""),
        ("success_threshold", 0.1, "at least replay.mean_threshold"),  # what the trigger calls a failure
        ("std", "sampled", ""),
        ("seed", -1, ""),
    ],
)
def test_a_bad_value_is_refused_by_name(name, value, words):
    with pytest.raises(ConfigError, match=rf"replay\.{name} must be {words}"):
        build_config(ReplayConfig, "replay", {name: value})
