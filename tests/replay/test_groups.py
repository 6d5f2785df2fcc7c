"""The groups of a batch."""

import pytest
from support.replay_trajectories import group, outcome, store_of, stored

from arpo_verl.errors import ReplayError
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import form_groups
from arpo_verl.replay.methods.arpo import Arpo

CONFIG = ReplayConfig()


@pytest.mark.parametrize(
    ("scores", "options", "failed"),
    [
        ((0, 0, 0, 0), {}, True),
        ((1, 0, 0, 0, 0, 0, 0, 0), {}, False),  # mean 0.125 is low enough, sigma 0.33 is not
        ((1, 1, 1, 1), {}, False),  # sigma 0 is low enough, mean 1 is not
        ((0.1, 0.1, 0.0, 0.0), {}, False),  # population sigma is 0.05, not below it
        ((0.08, 0.0), {}, True),  # population sigma 0.04, sample sigma 0.057
        ((0.2, 0.2), {}, False),  # mean 0.2 is not below 0.2
        ((0.36, 0.36, 0.0), {"std_threshold": 0.18, "mean_threshold": 0.25}, True),  # mean 0.24, sigma 0.17
        ((0.36, 0.36, 0.0), {"std_threshold": 0.18}, False),
        ((0.36, 0.36, 0.0), {"mean_threshold": 0.25}, False),
    ],
)
def test_the_trigger_asks_for_low_spread_and_low_mean(scores, options, failed):
    assert group(*scores).all_failed(ReplayConfig(**options)) is failed
    assert group(*scores, format_error=True).all_failed(ReplayConfig(**options)) is failed


def test_a_group_is_a_prompt_whatever_order_its_rollouts_arrive_in():
    rows = [outcome(10, 0, uid="x_x"), outcome(0, 1, uid="y", task_id="b"), outcome(2, 1, uid="x_x")]
    first, second = form_groups(rows)
    assert [(o.key, o.uid, o.session) for o in first.outcomes] == [("x_x_2_0", "x_x", 2), ("x_x_10_0", "x_x", 10)]
    assert (first.task_id, second.task_id) == ("a", "b")


def test_a_score_at_the_threshold_is_a_success():
    at, below = CONFIG.success_threshold, CONFIG.success_threshold - 0.01
    assert outcome(0, at).is_success(CONFIG) and not outcome(0, below).is_success(CONFIG)
    assert not outcome(0, 1.0, format_error=True).is_success(CONFIG)
    assert group(at, 1).all_solved(CONFIG) and not group(at, below).all_solved(CONFIG)
    store, config = store_of(stored()), ReplayConfig(std_threshold=0.5, mean_threshold=at)
    for step in range(20):
        (replacement,) = Arpo().choose([group(at, below)], store, config, step=step)
        assert replacement.outcome.success == below


def test_a_prompt_of_two_tasks_is_refused():
    with pytest.raises(ReplayError, match="must be of one task"):
        form_groups([outcome(0, 0), outcome(1, 0, task_id="b")])
