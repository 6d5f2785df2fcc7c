"""The sampler against a real TransferQueue on a real Ray, on rows that veRL's own post-processing wrote."""

import time
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from queue_rows import screenshot
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.pool import DesktopPool
from arpo_verl.errors import ConfigError, ReplayError
from arpo_verl.replay.rows import plain
from arpo_verl.replay.sampler import ReplaySampler

# What the trajectory determines in a row; the rest of a row is the prompt's.
TRAJECTORY_FIELDS = ["prompts", "responses", "input_ids", "response_mask", "loss_mask", "position_ids"]
TRAJECTORY_FIELDS += ["rollout_log_probs", "rm_scores", "num_turns", "multi_modal_inputs", "extra_fields"]


@pytest.fixture
def sampler(compose, model_path):
    """Samplers made by the trainer's own code from a recipe."""

    def make(*overrides, trainer_mode="sync"):
        path = f"actor_rollout_ref.model.path={model_path}"
        trainer = SimpleNamespace(
            config=compose(path, *overrides),
            trainer_mode=trainer_mode,
            _add_prompts_to_generate=lambda num_prompts: num_prompts,
        )
        return PPOTrainer._build_replay_buffer(trainer)

    return make


def read(tq, key, partition_id="train"):
    """All fields of one row, as the trainer's workers get them."""
    data = tq.kv_batch_get(keys=[key], partition_id=partition_id)
    return {name: plain(data[name][0]) for name in data.keys()}


def equal(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return a == b


def advantages_of(tq, batch, config):
    """What the trainer's own `_compute_advantage` leaves in the queue for the actor: one number a trajectory."""
    log_probs = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["rollout_log_probs"])
    log_probs["old_log_probs"] = log_probs.pop("rollout_log_probs")  # as if the actor had scored them
    tq.kv_batch_put(batch.keys, batch.partition_id, fields=log_probs)
    PPOTrainer._compute_advantage(SimpleNamespace(config=config), batch, metrics={})
    data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["advantages", "response_mask"])
    rows = zip(batch.keys, data["advantages"], data["response_mask"], strict=True)
    values = {key: set(advantages[mask.bool()].tolist()) for key, advantages, mask in rows}
    return {key: value for key, (value,) in values.items()}


def replayed_keys(batch):
    return [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("replayed")]


def test_an_all_failed_group_gets_one_replayed_success_and_the_hand_computed_advantages(
    empty_queue, rollouts, sampler, compose
):
    tq, replaying = empty_queue, sampler()
    # Step 1: task a is solved once in two, task b never.
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1), rollouts.output("a", 0.0, seed=2)])
    rollouts.put("q1", [rollouts.output("b", 0.0, seed=3), rollouts.output("b", 0.0, seed=4)])
    batch, metrics = replaying.sample(global_steps=1, partition_id="train", batch_size=2)
    assert len(batch) == 4 and replayed_keys(batch) == []
    assert metrics["replay/injected"] == 0 and metrics["replay/stored"] == 1 and metrics["replay/missed"] == 1
    success = read(tq, "p1_0_0")
    tq.kv_clear(keys=batch.keys, partition_id="train")

    # Step 2: a fails eight times, with longer and shorter episodes than the stored one; b is solved.
    rollouts.put("p2", [rollouts.output("a", 0.0, seed=10 + i, step=2, turns=1 + i % 3) for i in range(8)], step=2)
    rollouts.put("q2", [rollouts.output("b", 1.0, seed=20 + i, step=2) for i in range(2)], step=2)
    before = {key: read(tq, key) for key in [f"p2_{i}_0" for i in range(8)] + ["q2_0_0", "q2_1_0"]}
    batch, metrics = replaying.sample(global_steps=2, partition_id="train", batch_size=2)

    (key,) = replayed_keys(batch)
    assert key.startswith("p2_")
    row = read(tq, key)
    # Equal to the bit to the row that the rollout of step 1 wrote, but for the mark.
    extra_fields = dict(row["extra_fields"])
    assert extra_fields.pop("replayed") == 1
    for name in TRAJECTORY_FIELDS:
        assert equal(success[name], extra_fields if name == "extra_fields" else row[name]), name
    assert row["rm_scores"].sum() == 1.0 and row["extra_fields"]["reward_extra_info"]["success"] == 1.0
    # What belongs to the prompt stays: the row is still a member of its group.
    for name in ("uid", "session_id", "global_steps", "raw_prompt", "data_source", "reward_model"):
        assert row[name] == before[key][name], name
    assert row.keys() == before[key].keys()
    tag = batch.tags[batch.keys.index(key)]
    lengths = (len(success["prompts"]), len(success["responses"]))
    assert (tag["prompt_len"], tag["response_len"], tag["seq_len"]) == (*lengths, sum(lengths))
    assert (tag["min_global_steps"], tag["max_global_steps"], tag["global_steps"]) == (0, 0, 2)
    assert tq.kv_list("train")["train"][key] == tag
    # Every other row is as it was, also when all are fetched at once, as the actor does.
    together = tq.kv_batch_get(batch.keys, "train")
    assert equal(together["position_ids"][batch.keys.index(key)], success["position_ids"])
    assert equal(plain(together["multi_modal_inputs"][batch.keys.index(key)]), success["multi_modal_inputs"])
    for other in set(before) - {key}:
        assert equal(before[other], read(tq, other)), other

    advantages = advantages_of(tq, batch, compose())
    expected = {k: (2.6457 if k == key else -0.3780) if k.startswith("p2") else 0.0 for k in batch.keys}
    assert advantages == pytest.approx(expected, abs=1e-4)
    assert metrics["replay/injected"] == 1 and metrics["replay/missed"] == 0
    assert (metrics["replay/groups_all_failed"], metrics["replay/groups_all_solved"]) == (1, 1)
    assert metrics["replay/informative_share"] == 0.5
    # The policy solved 2 of 10; the replay does not embellish that.
    assert metrics["rollout/success_mean"] == 0.2
    # The replayed row is not stored again; the two new successes of b are.
    assert metrics["replay/stored"] == 2
    assert (metrics["replay/store_trajectories"], metrics["replay/store_tasks"]) == (3, 2)


def test_nothing_is_replayed_into_a_group_with_a_success_nor_the_steps_own_success_into_another(
    empty_queue, rollouts, sampler
):
    replaying = sampler()
    # Two prompts of one task in one step: the first solves it, the second does not.
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1), rollouts.output("a", 0.0, seed=2)])
    rollouts.put("p2", [rollouts.output("a", 0.0, seed=3), rollouts.output("a", 0.0, seed=4)])
    batch, metrics = replaying.sample(global_steps=1, partition_id="train", batch_size=2)
    assert replayed_keys(batch) == [] and metrics["replay/missed"] == 1
    empty_queue.kv_clear(keys=batch.keys, partition_id="train")
    rollouts.put("p3", [rollouts.output("a", 1.0, seed=5), rollouts.output("a", 0.0, seed=6)], step=2)
    batch, metrics = replaying.sample(global_steps=2, partition_id="train", batch_size=1)
    assert replayed_keys(batch) == [] and metrics["replay/injected"] == 0
    assert metrics["replay/store_trajectories"] == 2


def test_validation_passes_untouched_and_teaches_the_store_nothing(empty_queue, rollouts, sampler):
    tq, replaying = empty_queue, sampler()
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1)])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    rollouts.put("v1", [rollouts.output("a", 0.0, seed=2), rollouts.output("a", 0.0, seed=3)], partition_id="val")
    rollouts.put("v2", [rollouts.output("b", 1.0, seed=4)], partition_id="val")
    before = {key: read(tq, key, "val") for key in ("v1_0_0", "v1_1_0", "v2_0_0")}
    batch, metrics = replaying.sample(global_steps=1, partition_id="val", batch_size=2)
    assert metrics == {} and replayed_keys(batch) == []
    assert all(equal(row, read(tq, key, "val")) for key, row in before.items())
    assert [t.task_id for t in replaying.replayer.store.trajectories()] == ["a"]


def test_a_group_with_missing_sessions_is_replayed_into_unless_one_is_left(empty_queue, rollouts, sampler, compose):
    tq, replaying = empty_queue, sampler()
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1)])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    rollouts.put("p2", [None, rollouts.output("a", 0.0, seed=2), None, rollouts.output("a", 0.0, seed=3)], step=2)
    rollouts.put("p3", [None, None, rollouts.output("a", 0.0, seed=4)], step=2)
    batch, metrics = replaying.sample(global_steps=2, partition_id="train", batch_size=2)
    (key,) = replayed_keys(batch)
    assert key.startswith("p2_") and metrics["replay/missed"] == 1
    advantages = advantages_of(tq, batch, compose())
    assert sorted(advantages.values()) == pytest.approx([-1, 0, 1], abs=1e-4)


def test_switched_off_it_only_counts(empty_queue, rollouts, sampler):
    tq, replaying = empty_queue, sampler("replay.enable=false")
    for step in (1, 2):
        success = 1.0 if step == 1 else 0.0
        rollouts.put(f"p{step}", [rollouts.output("a", success, seed=i, step=step) for i in range(2)], step=step)
        before = {key: read(tq, key) for key in (f"p{step}_0_0", f"p{step}_1_0")}
        batch, metrics = replaying.sample(global_steps=step, partition_id="train", batch_size=1)
        assert replayed_keys(batch) == [] and len(replaying.replayer.store) == 0
        assert all(equal(row, read(tq, key)) for key, row in before.items())
        assert metrics["rollout/success_mean"] == success and metrics["replay/groups_all_failed"] == step - 1
        tq.kv_clear(keys=batch.keys, partition_id="train")


def test_the_async_sampler_replays_too(empty_queue, rollouts, sampler):
    tq, replaying = (
        empty_queue,
        sampler("trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync", trainer_mode="colocate_async"),
    )
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1)])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    rollouts.put("p2", [rollouts.output("a", 0.0, seed=i, step=2) for i in (2, 3)], step=2)
    batch, metrics = replaying.sample(global_steps=2, partition_id="train", batch_size=1)
    assert len(replayed_keys(batch)) == 1 and metrics["replay/injected"] == 1


def test_rows_of_another_agent_loop_are_refused_by_what_they_lack(empty_queue, rollouts, sampler):
    output = rollouts.output("a", 1.0, seed=1)
    del output.extra_fields["screenshots"], output.extra_fields["success"]
    rollouts.put("p1", [output])
    with pytest.raises(ReplayError, match="success, screenshots is missing"):
        sampler().sample(global_steps=1, partition_id="train", batch_size=1)


def test_screenshots_that_do_not_give_the_sequences_visual_tokens_are_refused(empty_queue, rollouts, sampler):
    tq, replaying = empty_queue, sampler()
    output = rollouts.output("a", 1.0, seed=1)
    output.extra_fields["screenshots"][1] = screenshot(9, size=(200, 100))
    rollouts.put("p1", [output])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    rollouts.put("p2", [rollouts.output("a", 0.0, seed=i, step=2) for i in (2, 3)], step=2)
    with pytest.raises(ReplayError, match="visual tokens"):
        replaying.sample(global_steps=2, partition_id="train", batch_size=1)


def test_the_jobs_desktops_boot_with_the_sampler_and_are_read_with_the_step(empty_queue, rollouts, sampler):
    environment = "+trainer.v1.sampler.sampler_kwargs.environment={provider: fake, num_desktops: %d%s}"
    with pytest.raises(ConfigError, match="must hold 1 desktop workers of environment.worker_resources.desktop_host"):
        sampler(environment % (1, ", worker_resources: {desktop_host: 1}"))
    replaying = sampler(environment % (1, ""))
    pool = DesktopPool.connect(EnvironmentConfig(provider="fake", num_desktops=1))
    try:
        deadline = time.monotonic() + 120
        while not pool.status()["desktops_idle"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        rollouts.put("p1", [rollouts.output("a", 0.0, seed=1, turns=1)])
        _, metrics = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
        assert metrics["environment/boots"] == 1.0 and metrics["environment/leases"] == 0.0
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("sampler_kwargs", "message"),
    [
        ({}, "sampler_kwargs.model_path must be the policy's path"),
        ({"model_path": "x", "replay": {"capacity_per_task": 0}}, "replay.capacity_per_task must be positive"),
        ({"model_path": "x", "environment": {"num_desktop": 1}}, "did you mean environment.num_desktops"),
        ({"model_path": "x", "reply": {}}, "did you mean trainer.v1.sampler.sampler_kwargs.replay"),
    ],
)
def test_a_bad_recipe_is_refused_before_anything_starts(sampler_kwargs, message):
    with pytest.raises(ConfigError, match=message):
        ReplaySampler("sync", OmegaConf.create({}), 8, "drop", sampler_kwargs=OmegaConf.create(sampler_kwargs))
