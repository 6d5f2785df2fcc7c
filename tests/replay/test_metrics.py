"""Metrics of groups, rollouts and the store."""

import pytest
from support.replay_trajectories import group, outcome, store_of, stored

from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group
from arpo_verl.replay.methods.arpo import Arpo
from arpo_verl.replay.metrics import group_metrics, rollout_metrics, store_metrics

CONFIG = ReplayConfig()


def test_metrics_count_groups_before_and_information_after_the_replays():
    groups = [
        group(0, 0, task_id="a", uid="p"),
        group(0, 0, task_id="b", uid="q"),
        group(1, 1, task_id="c", uid="r"),
        group(0, 1, task_id="d", uid="s"),
    ]
    plan = Arpo().choose(groups, store_of(stored("a")), CONFIG, step=1)
    metrics = group_metrics(groups, plan, CONFIG, 1)
    assert metrics == {
        "replay/age_mean": 0,
        "replay/added": 0,
        "replay/groups_all_failed": 2,
        "replay/groups_all_solved": 1,
        "replay/groups_mixed": 1,
        "replay/injected": 1,
        "replay/missed": 1,  # no success of b is cached
        "replay/informative_share": 0.5,  # a with its replay, and d
    }
    assert group_metrics(groups, (), CONFIG, 1)["replay/informative_share"] == 0.25


def test_a_format_penalty_alone_makes_a_group_informative_but_a_lone_rollout_never():
    penalised = Group("a", (outcome(0, 0.0, format_error=True), outcome(1, 0.0)))
    assert group_metrics([penalised], (), CONFIG, 1)["replay/informative_share"] == 1.0
    assert group_metrics([group(1.0)], (), CONFIG, 1)["replay/informative_share"] == 0.0


def test_rollout_metrics_tell_how_the_rollouts_ended():
    groups = [
        Group("a", (outcome(0, 1.0, turns=2), outcome(1, 0.0, turns=4, stop="step_limit"))),
        Group("b", (outcome(0, 0.0, format_error=True, turns=1, stop="parse_error"), outcome(1, 0.0, turns=5))),
    ]
    assert rollout_metrics(groups) == {
        "rollout/success_mean": 0.25,
        "rollout/reward_mean": 0.125,  # 1, 0, -0.5, 0
        "rollout/format_error_mean": 0.25,
        "rollout/turns_mean": 3.0,
        "rollout/informative_share": 1.0,
        "rollout/stop/finished": 0.5,
        "rollout/stop/failed": 0.0,
        "rollout/stop/parse_error": 0.25,
        "rollout/stop/step_limit": 0.25,
        "rollout/stop/token_limit": 0.0,
        "rollout/stop/desktop_ended": 0.0,
    }


def test_store_metrics_tell_its_size():
    metrics = store_metrics(store_of(stored("a", screenshots=[b"x" * 2**20]), stored("b", screenshots=[])), 2)
    assert metrics["replay/store_trajectories"] == 2 and metrics["replay/store_tasks"] == 2
    assert metrics["replay/stored"] == 2
    assert metrics["replay/store_mib"] == pytest.approx(1.0, abs=0.01)
