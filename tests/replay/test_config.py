import math

import pytest

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import build_config
from arpo_verl.replay.config import ReplayConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable", "yes"),
        ("prefetch", -1),
        ("capacity_per_task", 0),
        ("capacity_per_task", 2.5),
        ("seed_from", 3),
        ("std_threshold", 0.0),
        ("mean_threshold", math.nan),
        ("success_threshold", 1.5),
        ("std", "sampled"),
        ("seed", -1),
    ],
)
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"replay\.{name} must be"):
        build_config(ReplayConfig, "replay", {name: value})


def test_training_without_replay_is_the_remedy():
    with pytest.raises(ConfigError, match="capacity_per_task must be positive, got 0; set replay.enable=false"):
        ReplayConfig(capacity_per_task=0)


def test_what_the_trigger_calls_a_failure_cannot_count_as_a_success():
    with pytest.raises(ConfigError, match="success_threshold must be at least replay.mean_threshold"):
        ReplayConfig(success_threshold=0.1)


def test_a_misspelt_option_names_the_right_one():
    with pytest.raises(ConfigError, match="did you mean replay.capacity_per_task"):
        build_config(ReplayConfig, "replay", {"capacity_per_tsak": 4})
