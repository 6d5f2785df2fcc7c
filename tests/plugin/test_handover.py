import copy
import pickle

import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from arpo_verl.plugin.handover import RowLabel, labelled_rows


def test_a_label_is_the_uid_with_more_to_it():
    label = RowLabel("uid", "uid_3_0", is_replay=True, has_log_probs=False)
    assert label == "uid" and hash(label) == hash("uid") and {"uid": 1}[label] == 1
    for same in (pickle.loads(pickle.dumps(label)), copy.deepcopy(label)):
        assert (same, same.key, same.is_replay, same.has_log_probs) == ("uid", "uid_3_0", True, False)


def test_padding_rows_carry_none():
    assert labelled_rows(["pad", RowLabel("u", "u_0_0"), "pad"]) == {1: "u"}


def test_stock_grpo_groups_labelled_rows_as_it_groups_plain_ones():
    rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]), torch.ones(3, 2)
    plain = compute_grpo_outcome_advantage(rewards, mask, ["u", "u", "v"])
    labels = [RowLabel("u", "u_0_0", is_replay=True), RowLabel("u", "u_1_0"), RowLabel("v", "v_0_0")]
    assert torch.equal(compute_grpo_outcome_advantage(rewards, mask, labels)[0], plain[0])
