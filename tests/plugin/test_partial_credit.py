"""Partial credit through the loop, a real TransferQueue and the sampler: rewarded in training alone, no success."""

import json

import pytest
from omegaconf import OmegaConf
from support.loop_harness import DONE, HIT, ROW, FakePool, ScriptedEngine, play, recipe

from arpo_verl.desktops.fake import FakeScript
from arpo_verl.plugin import rows
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import form_groups

UID = ROW["uid"]


@pytest.fixture
def played(empty_queue, policy, tokenizer, tmp_path):
    """One hit of the two that the task asks for, in a row that veRL has queued in a partition."""

    def run(partial_credit, partition, hits=1, replies=None, reward=None):
        if partition is not None:
            empty_queue.kv_batch_put(
                keys=[UID], partition_id=partition, tags=[{"is_prompt": True, "status": "running"}]
            )
        config = OmegaConf.merge(
            recipe({"trajectory_dir": str(tmp_path)}, reward=reward),
            {"environment": {"partial_credit": partial_credit}},
        )
        pool = FakePool(FakeScript(success_clicks=2))
        hit_again = HIT.replace("(20,20)", "(90,50)")  # the square moves
        engine = ScriptedEngine(tokenizer, replies or [*[HIT, hit_again][:hits], DONE])
        output = play(policy, engine, pool, config)
        (file,) = tmp_path.rglob("episode.json")
        return output, json.loads(file.read_text())

    return run


@pytest.mark.parametrize(
    ("partial_credit", "partition", "reward"),
    [
        (0.0, "train", 0.0),  # the default
        (1.0, "train", 0.5),
        (0.5, "train", 0.25),
        (1.0, "val", 0.0),
        (1.0, None, 0.0),  # not known: binary
    ],
)
def test_half_of_the_checks_is_rewarded_in_training_alone(played, partial_credit, partition, reward):
    output, record = played(partial_credit, partition)
    assert output.reward_score == reward
    assert output.extra_fields["success"] == output.extra_fields["reward_extra_info"]["success"] == 0.0
    assert (record["success"], record["share"], record["reward"]) == (0.0, 0.5, reward)
    assert record["validation"] is (partition == "val")


def test_a_full_success_is_worth_no_more_and_a_malformed_reply_costs_the_same(played):
    output, _ = played(0.5, "train", hits=2)
    assert (output.reward_score, output.extra_fields["success"]) == (1.0, 1.0)


def test_a_malformed_reply_is_taken_off_the_credit(played):
    output, _ = played(1.0, "train", replies=[HIT, "nonsense"])
    assert (output.reward_score, output.extra_fields["success"]) == (0.5 - 1.0, 0.0)


def test_a_group_of_half_done_tasks_is_a_failed_group_and_leaves_nothing_to_replay(empty_queue, rollouts, played):
    output, _ = played(1.0, "train")
    empty_queue.kv_clear(keys=[UID], partition_id="train")
    other = rollouts.output("click-it", 0.0, seed=3)
    rollouts.put("g", [output, other])
    outcomes = rows.read_outcomes(["g_0_0", "g_1_0"], "train")
    assert [outcome.reward for outcome in outcomes] == [0.5, 0.0]
    config = ReplayConfig()
    (group,) = form_groups(outcomes)
    assert not any(outcome.is_success(config) for outcome in outcomes)
    assert group.all_failed(config)
