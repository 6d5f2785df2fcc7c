"""Replay methods from the queue to the advantages: successes beside a group, weighed apart, and token by token."""

import math
from types import SimpleNamespace

import pytest
from support import documents
from support.composed import compose_recipe
from support.queue_rows import TRAJECTORY_FIELDS, advantages_of, equal, read, replayed_keys
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from arpo_verl.errors import ArpoError
from arpo_verl.plugin.recipe.checks import check_recipe

ONE_STEP = "trainer.v1.separate_async.parameter_sync_step=1"
MODES = [
    ("sync", []),
    ("colocate_async", ["trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync"]),
    ("separate_async", ["trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync", ONE_STEP]),
]


@pytest.fixture
def play(compose, model_path, empty_queue, rollouts):
    """Plays step 1, in which one of two rollouts succeeds, and step 2, and returns what the sampler made of step 2."""

    def play(*overrides, mode="sync", window=None, second=(0.0, 0.0, 0.0), refill=(), step=2):
        mini_batch = f"actor_rollout_ref.actor.ppo_mini_batch_size={len(second)}"
        config = compose(f"actor_rollout_ref.model.path={model_path}", mini_batch, *overrides)
        trainer = SimpleNamespace(config=config, trainer_mode=mode, _add_prompts_to_generate=lambda number: number)
        replaying = PPOTrainer._build_replay_buffer(trainer)
        make = rollouts.output if window is None else rollouts.rows
        rollouts.put("p1", [make("a", 1.0, 1), rollouts.output("a", 0.0, 2)])
        batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
        written = [read(empty_queue, key) for key in batch.keys if key.startswith("p1_0")]
        empty_queue.kv_clear(keys=batch.keys, partition_id="train")
        rollouts.put("p2", [rollouts.output("a", score, 3 + i, step) for i, score in enumerate(second)], step=step)
        drawn = [rollouts.output("a", score, 30 + i, step) for i, score in enumerate(refill)]
        replaying.refill_fn = lambda number: rollouts.put("p3", drawn, step=step)
        batch, metrics = replaying.sample(global_steps=step, partition_id="train", batch_size=1)
        return SimpleNamespace(config=config, replaying=replaying, written=written, batch=batch, metrics=metrics)

    return play


@pytest.mark.parametrize(("mode", "overrides"), MODES)
@pytest.mark.parametrize("window", [None, 2])
def test_a_success_beside_its_group_is_the_rollouts_rows_and_a_member(play, empty_queue, mode, overrides, window):
    run = play("+replay.method=rlep", *overrides, mode=mode, window=window)
    keys = replayed_keys(run.batch)
    assert keys == [f"p2_1000_{number}" for number in range(len(run.written))]
    own = {f"p2_{session}_0" for session in range(3)}
    assert own < set(run.batch.keys)
    for key, original in zip(keys, run.written, strict=True):
        row = read(empty_queue, key)
        fields = dict(row["extra_fields"])
        assert fields.pop("replayed") == 1
        for name in TRAJECTORY_FIELDS:
            assert equal(original[name], fields if name == "extra_fields" else row[name]), name
        assert row["raw_prompt"] == read(empty_queue, "p2_0_0")["raw_prompt"]
    # (1, 0, 0, 0): the mean is 1/4 and sigma sqrt(3) / 4.
    advantages = advantages_of(empty_queue, run.batch, run.config)
    expected = {key: math.sqrt(3) if key in keys else -1 / math.sqrt(3) for key in (*own, *keys)}
    assert {key: advantages[key] for key in expected} == pytest.approx(expected, abs=1e-4)
    assert run.metrics["batch/updates"] == 1
    assert (run.metrics["replay/injected"], run.metrics["replay/added"], run.metrics["replay/age_mean"]) == (1, 1, 1.0)
    assert run.metrics["rollout/success_mean"] == 0.0


def test_spear_s_success_is_no_member_of_its_group(play, empty_queue):
    run = play("+replay.method=spear", "+replay.method_options.warm_up_steps=4", second=(0.5, 0.0))
    (key,) = replayed_keys(run.batch)
    # The groups' means are 0.5 in step 1 and 0.25 now; step 2 of 4 weighs a half.
    expected = {key: 0.5 * (1 - 0.375), "p2_0_0": 1.0, "p2_1_0": -1.0}
    advantages = advantages_of(empty_queue, run.batch, run.config)
    assert {name: advantages[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert 0 < float(run.metrics["replay/loss_share"]) < 1
    assert run.replaying.replayer.store.memory == [0.5, 0.25]


def test_spear_remembers_each_group_once_also_those_that_a_filter_throws_away(play):
    overrides = ("+replay.method=spear", "algorithm.filter_groups.enable=true")
    run = play(*overrides, second=(0.0, 0.0, 0.0), refill=(1.0, 0.0, 0.0))
    assert {key.split("_")[0] for key in run.batch.keys} == {"p3"}
    assert run.replaying.replayer.store.memory == pytest.approx([0.5, 1 / 3, 0.0])


def test_exgrpo_weighs_each_token_by_how_much_its_probability_changed(play, empty_queue):
    run = play("+replay.method=exgrpo", second=(1.0, 1.0, 0.0, 0.0))
    (key,) = replayed_keys(run.batch)
    shift = math.log(0.1)  # of each of the replay's tokens, so that its factor is a quarter
    plain = (1 - 0.75) / (math.sqrt(3) / 4)
    advantages = advantages_of(empty_queue, run.batch, run.config, dict.fromkeys(run.batch.keys, 0.0) | {key: shift})
    assert advantages[key] == pytest.approx(0.25 * plain, abs=1e-4)
    assert advantages["p2_0_0"] == pytest.approx(plain, abs=1e-4)
    assert float(run.metrics["replay/token_weight_mean"]) == pytest.approx(0.25, abs=1e-5)


def test_the_method_of_the_docs_is_found_by_its_import_path(play, monkeypatch, tmp_path):
    code = next(block for block in documents.code("docs/replay.md") if "AnyFailure" in block)
    (tmp_path / "my_method.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    mixed = (1.0, 0.0, 0.0, 0.0)
    run = play("+replay.method=my_method:AnyFailure", "+replay.method_options.share=1.0", second=mixed)
    assert len(replayed_keys(run.batch)) == 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["replay.method=rlap"], "replay.method must name one of arpo, fresh, rlep, spear, exgrpo"),
        (["replay.method=spear", "algorithm.adv_estimator=grpo"], "with algorithm.adv_estimator=grpo, got 'spear'"),
        (
            ["replay.method=exgrpo", "actor_rollout_ref.rollout.calculate_log_probs=false"],
            "calculate_log_probs must be true with replay.method=exgrpo",
        ),
    ],
)
def test_a_recipe_that_its_method_cannot_train_with_is_refused(model_path, overrides, words):
    with pytest.raises(ArpoError) as error:
        check_recipe(compose_recipe("embedded", f"actor_rollout_ref.model.path={model_path}", *overrides))
    assert words in str(error.value)
