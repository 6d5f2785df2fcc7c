import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_adv_estimator_fn
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from arpo_verl.errors import ConfigError
from arpo_verl.plugin.estimator import REPLAY_GRPO, compute_replay_grpo_advantage, group_advantages
from arpo_verl.plugin.step_metrics import SCORED_METRICS, ScoredBatch
from arpo_verl.plugin.trainer_state import trainer_state
from arpo_verl.replay.labels import RowLabel

OF_ROWS = {
    "critic/score/mean": 0.5,
    "critic/rewards/mean": 0.5 - 0.75 / 2,
    "actor/entropy": 5.0,
    "training/rollout_probs_diff_max": math.exp(-1) - math.exp(-3),
}
WORKED_EXAMPLE = torch.tensor([1.0] + [0.0] * 7)


def batch(rewards, tokens=5, seed=0):
    """Rewards on each trajectory's last token, and a mask with gaps as between turns."""
    mask = torch.from_numpy(np.random.default_rng(seed).integers(0, 2, (len(rewards), tokens)))
    mask[:, -1] = 1
    token_level = torch.zeros(len(rewards), tokens)
    token_level[:, -1] = torch.as_tensor(rewards, dtype=torch.float32)
    return token_level, mask


def algorithm(**replay):
    own = {"adv_estimator": REPLAY_GRPO, "norm_adv_by_std_in_grpo": True}
    actor = {"loss_agg_mode": "seq-mean-token-mean", "loss_scale_factor": None}
    return OmegaConf.create({"algorithm": own, "replay": replay, "actor_rollout_ref": {"actor": actor}}).algorithm


def test_the_papers_worked_example():
    # mean 1/8, population sigma sqrt(1/8 * 7/8) = 0.33072; 0.875 / 0.33072 = 2.6457, -0.125 / 0.33072 = -0.3780
    advantages = group_advantages(WORKED_EXAMPLE, ["g"] * 8)
    assert advantages.tolist() == pytest.approx([2.6457] + [-0.3780] * 7, abs=5e-5)
    assert [round(a, 2) for a in advantages.tolist()] == [2.65] + [-0.38] * 7


def test_equal_rewards_and_a_lone_trajectory_get_zero():
    advantages = group_advantages(torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0]), ["x", "x", "y", "y", "alone"])
    assert advantages.tolist() == [0.0] * 5


def test_an_episode_keeps_its_advantage_where_a_correction_rejects_its_last_row():
    index = np.array([RowLabel("g", key) for key in ("g_0_0", "g_0_1", "g_1_0")], dtype=object)
    token_level, mask = batch([1.0, 1.0, 0.0])
    mask[0], mask[1] = 1, 0
    advantages, _ = compute_replay_grpo_advantage(token_level, mask, index, config=algorithm(enable=False))
    # Sample sigma of (1, 0) is 0.7071.
    assert advantages[0].tolist() == pytest.approx([0.5 / 0.7071] * 5, abs=1e-4)
    assert not advantages[1].any()


def test_a_replay_loses_nothing_by_a_kl_penalty_on_its_reward(monkeypatch):
    monkeypatch.setattr(ScoredBatch, "read", lambda *_: None)  # needs a queue
    index = np.array([RowLabel("g", f"g_{i}_0", is_replay=i == 2) for i in range(3)], dtype=object)
    advantages = compute_replay_grpo_advantage(*batch([0.0, -0.1, -3.0]), index, config=algorithm())[0]
    assert advantages[2].tolist() == [0.0] * 5 and advantages[0].max() > 0


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("std", ["population", "sample"])
def test_equal_graded_rewards_get_exactly_zero(std, divide):
    """0.6 eight times gave 0.056 each: their mean in float32 is another number, and so is sigma."""
    for reward in (0.6, 0.1, 1 / 3, 0.7):
        for size in range(2, 17):
            advantages = group_advantages(torch.full((size,), reward), [0] * size, std=std, divide_by_std=divide)
            assert advantages.abs().max() == 0, (reward, size)


@settings(max_examples=100)
@given(
    rewards=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=24),
    num_groups=st.integers(1, 6),
    divide=st.booleans(),
    std=st.sampled_from(["population", "sample"]),
)
def test_without_replay_the_advantages_are_stock_grpos_to_the_bit(rewards, num_groups, divide, std):
    token_level, mask = batch(rewards)
    index = np.array([f"uid-{row % num_groups}" for row in range(len(rewards))], dtype=object)
    config = algorithm(enable=False, std=std)  # std has no say when replay is off
    config.norm_adv_by_std_in_grpo = divide
    ours, ours_returns = compute_replay_grpo_advantage(token_level.clone(), mask, index, config=config)
    stock, stock_returns = compute_grpo_outcome_advantage(
        token_level.clone(), mask, index, norm_adv_by_std_in_grpo=divide
    )
    assert torch.equal(ours, stock) and torch.equal(ours_returns, stock_returns)


@settings(max_examples=100)
@given(rewards=st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=24), divide=st.booleans())
def test_with_sample_sigma_every_group_of_unlike_rewards_is_stock_grpo_to_the_bit(rewards, divide):
    token_level, mask = batch(rewards)
    index = np.array([row % 2 for row in range(len(rewards))], dtype=object)
    scores = token_level.sum(dim=-1)
    alike = torch.tensor([len(set(scores[row % 2 :: 2].tolist())) == 1 for row in range(len(rewards))])
    config = algorithm(std="sample")
    config.norm_adv_by_std_in_grpo = divide
    ours, _ = compute_replay_grpo_advantage(token_level.clone(), mask, index, config=config)
    stock, _ = compute_grpo_outcome_advantage(token_level.clone(), mask, index, norm_adv_by_std_in_grpo=divide)
    assert torch.equal(ours, stock.masked_fill(alike[:, None], 0))


def test_metrics_without_replays_are_of_what_the_trainers_own_are_of(monkeypatch):
    """Scores without the KL penalty; entropy and log-probs of all tokens, also of those that a correction rejects."""
    index = np.array([RowLabel("g", f"g_{i}_0", is_replay=i == 2) for i in range(3)], dtype=object)
    scores, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]), torch.tensor([[1, 1], [0, 1], [1, 1]])
    ours = torch.tensor([[-1.0, -1.0], [0.0, -1.0], [-1.0, -1.0]])
    columns = {"prompt_length": torch.ones(3), "response_length": torch.full((3,), 2.0), "num_turns": torch.ones(3)}
    columns |= {"response_mask": mask, "rm_scores": scores, "old_log_probs": ours, "rollout_log_probs": ours.clone()}
    columns |= {"entropy": torch.tensor([[1.0, 3.0], [0.0, 8.0], [9.0, 9.0]])}
    columns["rollout_log_probs"][0, 0] = -3.0
    monkeypatch.setattr(ScoredBatch, "read", lambda *_: ScoredBatch([0, 1, 2], list(index), columns))
    config = algorithm()
    logged = trainer_state(config).late_metrics.open(SCORED_METRICS)
    rejected = mask.clone()
    rejected[0, 0] = 0
    compute_replay_grpo_advantage(scores - 0.25 * mask, rejected, index, config=config)
    found = {name: float(logged[f"replay/without/{name}"]) for name in OF_ROWS}
    assert found == pytest.approx(OF_ROWS, rel=1e-5)


def test_a_call_without_a_section_of_the_recipe_is_refused():
    token_level, mask = batch([1.0, 0.0])
    with pytest.raises(ConfigError, match="must be a section of the recipe"):
        compute_replay_grpo_advantage(token_level, mask, ["g", "g"])


def test_verl_finds_it_by_name_and_calls_it_with_the_recipes_algorithm_section(compose):
    assert get_adv_estimator_fn("replay_grpo") is compute_replay_grpo_advantage
    config = compose("+replay.std=sample")
    token_level, mask = batch(WORKED_EXAMPLE)
    data = DataProto.from_dict(
        tensors={"token_level_rewards": token_level, "response_mask": mask},
        non_tensors={"uid": np.array(["u"] * 8, dtype=object)},
    )
    data = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=[f"u_{session}_0" for session in range(8)],
        adv_estimator=config.algorithm.adv_estimator,
        norm_adv_by_std_in_grpo=config.algorithm.norm_adv_by_std_in_grpo,
        config=config.algorithm,
    )
    assert data.batch["advantages"][:, -1].tolist() == pytest.approx([2.4749] + [-0.3536] * 7, abs=5e-5)


def test_the_trainer_s_log_probs_are_of_the_tokens_that_a_policy_wrote():
    """By row, whatever the order of the rows in the queue."""
    values = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]])
    columns = {"old_log_probs": values, "response_mask": torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])}
    labels = [RowLabel("u-1", "u-1_0_1"), RowLabel("u-1", "u-1_0_0", is_replay=True)]
    assert ScoredBatch([5, 2], labels, columns).old_log_probs() == {"u-1_0_1": [-1.0, -3.0], "u-1_0_0": [-5.0]}
    del columns["old_log_probs"]  # veRL takes the rollout engine's
    assert ScoredBatch([5, 2], labels, columns).old_log_probs() == {}
