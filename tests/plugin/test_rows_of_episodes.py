"""Episodes of several rows from the queue to the advantages: replayed, stored, padded, and counted once in a group."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from support.queue_rows import TRAJECTORY_FIELDS, advantages_of, equal, read, replayed_keys
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from arpo_verl.errors import ReplayError

BATCH = ("actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.rollout.n=4")


@pytest.fixture
def sampler(compose, model_path):
    """Samplers made by the trainer's own code from a recipe, and the recipe."""

    def make(*overrides, trainer_mode="sync"):
        # Of two episodes, as most batches here: their rows are one mini-batch, and none is filled up.
        mini_batch = "actor_rollout_ref.actor.ppo_mini_batch_size=2"
        config = compose(f"actor_rollout_ref.model.path={model_path}", mini_batch, *overrides)
        refill = lambda num_prompts: num_prompts  # noqa: E731
        trainer = SimpleNamespace(config=config, trainer_mode=trainer_mode, _add_prompts_to_generate=refill)
        return PPOTrainer._build_replay_buffer(trainer), config

    return make


def sample(replaying, step, batch_size=1):
    return replaying.sample(global_steps=step, partition_id="train", batch_size=batch_size)


RESUMES = "trainer.resume_mode=auto"


def save(replaying, folder):
    replaying.replayer.save(folder / "global_step_1" / "replay")
    (folder / "latest_checkpointed_iteration.txt").write_text("1")


def failures(rollouts, rows_of_each, step, seed=30):
    """A group that failed, of episodes of so many rows."""
    return [
        rollouts.rows("a", 0.0, seed + i, step, turns=1 + number, window=2)
        if number > 1
        else rollouts.output("a", 0.0, seed + i, step)
        for i, number in enumerate(rows_of_each)
    ]


def store_a_success(queue, rollouts, replaying, turns=4):
    """In step 1; returns the rows that the rollout wrote."""
    rollouts.put("p1", [rollouts.rows("a", 1.0, 1, turns=turns), rollouts.output("a", 0.0, 2)])
    batch, metrics = sample(replaying, 1)
    assert metrics["replay/stored"] == 1 and metrics["replay/injected"] == 0
    written = [read(queue, key) for key in batch.keys if key.startswith("p1_0")]
    queue.kv_clear(keys=batch.keys, partition_id="train")
    return written


@pytest.mark.parametrize(
    ("prefetch", "failed"),
    [
        (4, [2, 4]),
        *(pytest.param(*case, marks=pytest.mark.release) for case in [(0, [3, 3]), (0, [1, 1]), (4, [5, 5])]),
    ],
)
def test_a_failures_rows_leave_and_a_successs_come_whatever_their_numbers(
    empty_queue, rollouts, sampler, failed, prefetch
):
    """A success of three rows in the place of failures of one to five: equal to the bit to what its rollout wrote."""
    replaying, config = sampler(f"+replay.prefetch={prefetch}")
    written = store_a_success(empty_queue, rollouts, replaying)
    assert len(written) == 3
    rollouts.put("p2", failures(rollouts, failed, 2), step=2)
    before = {key: read(empty_queue, key) for key in empty_queue.kv_list("train")["train"] if key != "p2"}
    batch, metrics = sample(replaying, 2)

    assert metrics["replay/injected"] == 1
    keys = replayed_keys(batch)
    session = keys[0].split("_")[1]
    assert keys == [f"p2_{session}_{i}" for i in range(3)]
    other = [f"p2_{1 - int(session)}_{i}" for i in range(failed[1 - int(session)])]
    assert sorted(batch.keys) == sorted(keys + other) == sorted(empty_queue.kv_list("train")["train"])
    for key, original in zip(keys, written, strict=True):
        row = read(empty_queue, key)
        extra_fields = dict(row["extra_fields"])
        assert extra_fields.pop("replayed") == 1
        for name in TRAJECTORY_FIELDS:
            assert equal(original[name], extra_fields if name == "extra_fields" else row[name]), name
        for name in ("session_id", "global_steps", "raw_prompt", "data_source", "reward_model"):
            assert row[name] == before[f"p2_{session}_0"][name], name
        tag = batch.tags[batch.keys.index(key)]
        assert tag["seq_len"] == len(original["input_ids"]) and tag["global_steps"] == 2
        assert empty_queue.kv_list("train")["train"][key] == tag
    for key in other:
        assert equal(before[key], {**read(empty_queue, key), "uid": before[key]["uid"]})
    # Two members, whatever the number of their rows: (1, 0) is one sigma up and one down.
    assert advantages_of(empty_queue, batch, config) == pytest.approx(
        {key: 1.0 if key in keys else -1.0 for key in batch.keys}, abs=1e-4
    )


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_the_asynchronous_modes_replay_rows_too(empty_queue, rollouts, sampler, mode):
    """The second group of step 1 waits in the queue until step 2."""
    name = "trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync"
    one_batch = "trainer.v1.separate_async.parameter_sync_step=1"
    replaying, config = sampler(name, one_batch, *BATCH, trainer_mode=mode)
    written = store_a_success(empty_queue, rollouts, replaying)
    rollouts.put("p2", failures(rollouts, [2, 5], 1), step=1)
    batch, metrics = sample(replaying, 2)
    keys = replayed_keys(batch)
    assert metrics["replay/injected"] == 1 and len(keys) == len(written) == 3
    assert {tag["global_steps"] for key, tag in zip(batch.keys, batch.tags, strict=True) if key in keys} == {1}
    for key, original in zip(keys, written, strict=True):
        assert equal(original["input_ids"], read(empty_queue, key)["input_ids"])
    of_replay = {key: value for key, value in advantages_of(empty_queue, batch, config).items() if key in keys}
    assert of_replay == pytest.approx(dict.fromkeys(keys, 1.0), abs=1e-4)


def test_statistics_are_over_episodes_and_rows_get_their_episodes_advantage(empty_queue, rollouts, sampler):
    """One success of five rows and three failures of one: as if each had one."""
    group = [rollouts.rows("a", 1.0, 1, turns=6), *(rollouts.output("a", 0.0, i) for i in (2, 3, 4))]
    for overrides in (["+replay.std=sample"], ["replay.enable=false"]):
        replaying, config = sampler(*overrides)
        rollouts.put("p1", group)
        batch, metrics = sample(replaying, 1)
        assert len(batch) == 8 and metrics["rollout/success_mean"] == 0.25
        # Sample sigma of (1, 0, 0, 0) is 0.5.
        expected = {key: 1.5 if key.startswith("p1_0") else -0.5 for key in batch.keys}
        assert advantages_of(empty_queue, batch, config) == pytest.approx(expected, abs=1e-4)
        empty_queue.kv_clear(keys=batch.keys, partition_id="train")


def test_a_lone_episode_of_several_rows_is_compared_with_nothing(empty_queue, rollouts, sampler):
    replaying, config = sampler()
    rollouts.put("p1", [rollouts.rows("a", 1.0, 1), None, None])
    batch, metrics = sample(replaying, 1)
    assert len(batch) == 3 and metrics["rollout/informative_share"] == 0
    assert set(advantages_of(empty_queue, batch, config).values()) == {0.0}


def test_equal_weights_give_each_episode_the_same_share_of_the_loss(empty_queue, rollouts, sampler):
    replaying, config = sampler("+algorithm.episode_weight=equal", *BATCH)
    rollouts.put("p1", [rollouts.rows("a", 1.0, 1, turns=6), rollouts.output("a", 0.0, 2, turns=1)])
    batch, _ = sample(replaying, 1)
    advantages = advantages_of(empty_queue, batch, config)
    data = empty_queue.kv_batch_get(batch.keys, "train", select_fields=["response_mask"])
    tokens = {key: int(mask.sum()) for key, mask in zip(batch.keys, data["response_mask"], strict=True)}
    shares = [sum(tokens[key] * advantages[key] for key in tokens if key.startswith(f"p1_{i}")) for i in (0, 1)]
    assert shares[0] == pytest.approx(-shares[1], rel=1e-3)
    assert shares[0] == pytest.approx(sum(tokens.values()) / 2, rel=1e-3)


@pytest.mark.parametrize("groups", [2, *(pytest.param(n, marks=pytest.mark.release) for n in (1, 3))])
def test_the_number_of_updates_is_the_recipes_whatever_the_number_of_rows(empty_queue, rollouts, sampler, groups):
    """Stock veRL would make an update of every four rows."""
    replaying, config = sampler(*BATCH)
    for number in range(groups):
        turns = [2, 3, 5, 7][: 4 - number]
        rollouts.put(
            f"p{number}", [rollouts.rows("a", float(i % 2), 10 * number + i, turns=t) for i, t in enumerate(turns)]
        )
    batch, metrics = sample(replaying, 1, groups)
    episodes = {key.rsplit("_", 1)[0] for key in batch.keys if not key.startswith("pad")}
    rows = [key for key in batch.keys if not key.startswith("pad")]
    mini_batch = config.actor_rollout_ref.actor.ppo_mini_batch_size * 4
    updates = -(-len(episodes) // 4)
    assert metrics["batch/updates"] == updates == len(batch) / mini_batch
    assert metrics["batch/rows"] == len(rows) == len(set(rows)) and metrics["batch/padding_rows"] == len(batch) - len(
        rows
    )
    assert len(batch) - len(rows) < updates * 4 or len(rows) < updates * 4
    # What the trainer asks for before it balances, and what its update takes as a mini-batch.
    trainer = SimpleNamespace(config=config, use_critic=False, global_steps=1)
    assert len(batch) % PPOTrainer._get_required_batch_multiple(trainer, 2) == 0
    assert set(advantages_of(empty_queue, batch, config)) == set(rows)


def test_a_store_of_episodes_of_several_rows_is_saved_and_goes_on(empty_queue, rollouts, sampler, tmp_path):
    resume = [RESUMES, f"trainer.default_local_dir={tmp_path}"]
    replaying, _ = sampler(*resume)
    store_a_success(empty_queue, rollouts, replaying)
    save(replaying, tmp_path)
    resumed, _ = sampler(*resume)
    (trajectory,) = resumed.replayer.store.trajectories()
    assert (trajectory,) == replaying.replayer.store.trajectories()
    assert [row.screenshots for row in trajectory.each_row()] == [range(2), range(1, 3), range(2, 4)]
    assert len(trajectory.screenshots) == 4


def test_what_one_context_stored_is_not_replayed_in_another(empty_queue, rollouts, sampler, tmp_path):
    resume = [RESUMES, f"trainer.default_local_dir={tmp_path}"]
    replaying, _ = sampler(*resume, "+gui_agent.context=window", "+gui_agent.max_screenshots=2")
    store_a_success(empty_queue, rollouts, replaying)
    save(replaying, tmp_path)
    for context, screenshots in (("full", "null"), ("window", 3), ("segments", "null")):
        other = (f"+gui_agent.context={context}", f"+gui_agent.max_screenshots={screenshots}")
        with pytest.raises(ReplayError, match="another prompt"):
            sampler(*resume, *other, "+replay.on_bad_store=refuse")


def test_an_episode_with_a_row_missing_is_refused(empty_queue, rollouts, sampler):
    replaying, _ = sampler()
    rollouts.put("p1", [rollouts.rows("a", 1.0, 1)])
    empty_queue.kv_clear(keys=["p1_0_1"], partition_id="train")
    with pytest.raises(ReplayError, match=r"numbered from 0, got \[0, 2\]"):
        sample(replaying, 1)


def test_validation_shows_one_sample_of_an_episode_of_several_rows(empty_queue, rollouts, sampler):
    from arpo_verl.plugin.validation_samples import read_samples

    rollouts.put("v1", [rollouts.rows("a", 1.0, 1), rollouts.rows("a", 0.0, 2)], partition_id="val")
    rollouts.put("v2", [rollouts.output("b", 0.0, 3)], partition_id="val")
    replaying, _ = sampler()
    batch, _ = replaying.sample(global_steps=1, partition_id="val", batch_size=2)
    samples = read_samples(batch.keys, "val", 4, 1, replaying.replayer.inputs.tokenizer.decode)
    assert {(one.task_id, len(one.replies), len(one.screenshots)) for one in samples} == {("a", 4, 4), ("b", 2, 2)}


def test_groups_are_logged_with_one_member_an_episode(empty_queue, rollouts, sampler, tmp_path):
    import json

    replaying, config = sampler(f"+gui_agent.trajectory_dir={tmp_path}")
    store_a_success(empty_queue, rollouts, replaying)
    rollouts.put("p2", failures(rollouts, [5, 2], 2), step=2)
    batch, _ = sample(replaying, 2)
    advantages_of(empty_queue, batch, config)
    (group,) = [json.loads(line) for line in (tmp_path / "step_000002" / "groups.jsonl").read_text().splitlines()]
    assert [row["session"] for row in group["rows"]] == [0, 1]
    assert sorted(row["advantage"] for row in group["rows"]) == pytest.approx([-1.0, 1.0], abs=1e-4)
    assert [row["replay"] is not None for row in group["rows"]].count(True) == 1


def test_episodes_of_several_rows_are_as_many_mini_batches_as_they_would_be_of_one():
    from arpo_verl.plugin.trainer_state import BatchShape

    shape = BatchShape(2, 4)
    assert [shape.rows_of(16, rows, 4) for rows in (16, 17, 161)] == [8, 12, 84]
    assert [shape.rows_of(16, rows, 8) for rows in (16, 17, 160, 161)] == [8, 16, 80, 88]
    assert [shape.rows_of(episodes, episodes, 4) for episodes in (1, 8, 9, 16, 40)] == [8] * 5


@pytest.mark.parametrize(("dynamic", "unit"), [(False, 12), (True, 2)])
def test_each_process_gets_whole_micro_batches(dynamic, unit):
    """On two of them, which train on two rows at once and score three; veRL's `prepare_micro_batches` asserts it."""
    from arpo_verl.plugin.padding import MiniBatches
    from arpo_verl.plugin.trainer_state import BatchShape

    roles = {
        "actor": {"use_dynamic_bsz": dynamic, "ppo_micro_batch_size_per_gpu": 2},
        "rollout": {"log_prob_micro_batch_size_per_gpu": 3},
    }
    trainer = {"n_gpus_per_node": 2, "nnodes": 1}
    recipe = OmegaConf.create({"actor_rollout_ref": roles, "trainer": trainer})
    assert MiniBatches(recipe, BatchShape(6, 2))._unit == unit
