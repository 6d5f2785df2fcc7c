"""Advantages under EasyR1's name `grpo`: the veRL path's on the same outcomes."""

import numpy as np
import pytest
import torch
from support.easyr1 import require_easyr1

require_easyr1()

from verl.protocol import DataProto  # noqa: E402
from verl.trainer import core_algos  # noqa: E402
from verl.trainer.ray_trainer import compute_advantage  # noqa: E402

from arpo_verl.easyr1.estimator import register_estimator  # noqa: E402
from arpo_verl.records.run_records import GroupLog  # noqa: E402
from arpo_verl.replay.advantages import group_advantages  # noqa: E402
from arpo_verl.replay.config import ReplayConfig  # noqa: E402


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(core_algos, "ADV_ESTIMATOR_MAP", dict(core_algos.ADV_ESTIMATOR_MAP))


def estimated(rewards, groups, faults=(), replayed=(), **replay):
    """Each row's advantage, by EasyR1's own `compute_advantage`; every row has its own uid."""
    register_estimator(ReplayConfig(**replay), GroupLog(), replayed)
    mask = torch.tensor([[0, 0] if row in faults else [1, 0] for row in range(len(rewards))])
    scores = torch.zeros(len(rewards), 2)
    scores[:, 1] = torch.tensor(rewards)
    data = DataProto.from_dict(
        tensors={"token_level_rewards": scores, "response_mask": mask},
        non_tensors={"uid": np.array([f"{group}_{row}_0" for row, group in enumerate(groups)], dtype=object)},
    )
    advantages = compute_advantage(data, "grpo").batch["advantages"]
    assert (advantages[:, 1] == 0).all()
    return advantages[:, 0].tolist()


def test_the_papers_example_gives_its_advantages():
    assert estimated([1.0] + [0.0] * 7, "g" * 8) == pytest.approx([2.6458] + [-0.378] * 7, abs=1e-3)


@pytest.mark.parametrize("std", ["population", "sample"])
def test_they_are_those_of_the_verl_path(std):
    rewards, groups = [1.0, -1.0, 0.0, 0.6, 0.6, 1.0, 0.0], list("aabbbcc")
    assert estimated(rewards, groups, std=std) == group_advantages(torch.tensor(rewards), groups, std=std).tolist()


def test_an_episode_that_infrastructure_failed_is_no_member_of_its_group():
    assert estimated([1.0, 0.0, 0.0], "ggg", faults={2}) == [*estimated([1.0, 0.0], "gg"), 0.0]


def test_a_kl_penalty_in_the_reward_gives_no_replay_an_advantage_below_0():
    assert estimated([0.4, 0.6], "gg", replayed={"g_0_0"}) == [0.0, estimated([0.4, 0.6], "gg")[1]]


def test_without_replay_it_is_easyr1s_own_over_our_groups():
    rewards, groups = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0], list("aaabbc")
    labels, ones = np.array(groups[:5], dtype=object), torch.ones(5, 1)
    own = core_algos.compute_grpo_outcome_advantage(torch.tensor(rewards[:5]).unsqueeze(-1), ones, labels)[0][:, 0]
    assert estimated(rewards, groups, enable=False) == [*own.tolist(), 0.0]
