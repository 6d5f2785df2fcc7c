"""A batch from which sessions are missing, against a real TransferQueue and veRL's own balance and forward pass."""

import subprocess
import sys

import pytest
import torch
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

from arpo_verl.plugin import queue, rows
from arpo_verl.plugin.padding import MiniBatches, fill_up
from arpo_verl.plugin.queue import Batch, plain
from arpo_verl.plugin.trainer_state import BatchShape
from arpo_verl.replay.labels import RowLabel


def put(rollouts, tq, *turns):
    """A group whose sessions have so many turns each. Returns the batch as the sampler gives it."""
    rollouts.put("p1", [rollouts.output("a", float(not i), seed=i, turns=n) for i, n in enumerate(turns)])
    keys = [f"p1_{session}_0" for session in range(len(turns))]
    listed = tq.kv_list("train")["train"]
    batch = Batch(partition_id="train", keys=keys, tags=[listed[key] for key in keys])
    rows.label(batch, {})
    return batch


def test_a_batch_is_filled_up_with_its_shortest_row_which_nothing_counts(empty_queue, rollouts):
    tq = empty_queue
    batch = put(rollouts, tq, 3, 1, 2)
    padded = fill_up(batch, 8)
    # Evenly among the others: mini-batches are cut in this order.
    added = [key.startswith("pad") for key in padded.keys]
    assert added == [True, False, True, True, False, True, False, True] and len(set(padded.keys)) == 8
    assert [key for key in padded.keys if not key.startswith("pad")] == batch.keys
    padded = queue.rebatch(padded, sorted(padded.keys), dict(zip(padded.keys, padded.tags, strict=True)))
    data = tq.kv_batch_get(padded.keys, "train")
    for row in range(3, 8):
        assert padded.tags[row] == {**batch.tags[1], "is_padding": True}
        assert torch.equal(data["input_ids"][row], data["input_ids"][1])
        assert torch.equal(data["position_ids"][row], data["position_ids"][1])
        inputs, source = (plain(data["multi_modal_inputs"][i]) for i in (row, 1))
        assert inputs.keys() == source.keys() and inputs["pixel_values"] == source["pixel_values"]
        for name in ("response_mask", "loss_mask", "rm_scores"):
            assert not data[name][row].any() and data[name][row].shape == data[name][1].shape
    uids = [plain(uid) for uid in data["uid"]]
    assert uids[:3] == ["p1"] * 3 and len(set(uids[3:])) == 1 and uids[3].startswith("pad")
    assert [isinstance(uid, RowLabel) for uid in uids] == [True] * 3 + [False] * 5
    # As many as the trainer asks for: it adds none of its own.
    assert upsample_batch_to_divisible_size(padded, 8, eos_token_id=0) is padded


def test_a_whole_batch_is_left_as_it_is(empty_queue, rollouts):
    batch = put(rollouts, empty_queue, 1, 2)
    assert fill_up(batch, 2) is batch


def test_a_success_beside_its_group_is_an_episode_too(compose):
    batch = Batch(partition_id="train", keys=["p_0_0", "p_0_1", "p_0_2", "p_1000_0"], tags=[{}] * 4)
    _, metrics = MiniBatches(compose(), BatchShape(4, 1)).form(batch, num_episodes=1)
    assert metrics["batch/rows_per_episode"] == 2


# In a process of its own: veRL patches the model's class for good.
TEXT_ALONE = """
import sys, torch
from transformers import AutoModelForImageTextToText
from verl.models.transformers.monkey_patch import apply_monkey_patch

model = AutoModelForImageTextToText.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="sdpa")
apply_monkey_patch(model, use_remove_padding=False, ulysses_sp_size=1)
ids = torch.full((1, int(sys.argv[2])), 5)
positions = torch.arange(ids.shape[1]).expand(4, 1, -1)
model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=positions, use_cache=False)
"""


@pytest.mark.release
def test_verls_own_padding_has_no_image_and_its_qwen_cannot_take_it(empty_queue, rollouts, model_path):
    """Why the sampler pads: once this fails, veRL's own rows do, and `padding.py` can go."""
    batch = upsample_batch_to_divisible_size(put(rollouts, empty_queue, 1), 2, eos_token_id=0)
    padding = empty_queue.kv_batch_get(batch.keys[1:], "train")[0]
    assert padding["multi_modal_inputs"] == {}
    command = [sys.executable, "-c", TEXT_ALONE, model_path, str(len(padding["input_ids"]))]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode != 0 and "AttributeError" in ended.stderr and "mean" in ended.stderr, ended.stderr
