"""The sampler against a real TransferQueue on a real Ray, on rows that veRL's own post-processing wrote."""

import dataclasses
import itertools
import json
import math
import pickle
import weakref
from types import SimpleNamespace

import pytest
import torch
from support.desktop_harness import eventually
from support.queue_rows import TRAJECTORY_FIELDS, advantages_of, equal, read, replayed_keys
from support.replay_trajectories import outcome, stored
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.utils import MetricsAggregator

from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.desktop_pool import DesktopPool
from arpo_verl.errors import ConfigError, DesktopLostError, ReplayError
from arpo_verl.plugin import queue, rows
from arpo_verl.plugin.queue import plain
from arpo_verl.plugin.trainer_state import SAMPLER_SECTION
from arpo_verl.replay.groups import form_groups, uid_of
from arpo_verl.replay.rules import task_content
from arpo_verl.tasks.frontier import Frontier, FrontierConfig
from arpo_verl.types import EpisodeId

MODES = ["sync", pytest.param("colocate_async", marks=pytest.mark.release)]
RECORDED_IN = "+gui_agent.trajectory_dir="


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


def recipe_of(replaying):
    return replaying.replayer.state.recipe


def test_an_all_failed_group_gets_one_replayed_success_and_the_hand_computed_advantages(empty_queue, rollouts, sampler):
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

    advantages = advantages_of(tq, batch, recipe_of(replaying))
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


def test_a_validation_of_which_nothing_is_left_says_so(empty_queue, rollouts, sampler):
    replaying = sampler()
    rollouts.put("v1", [None, None], partition_id="val")
    with pytest.raises(DesktopLostError, match="all sessions of its 1 tasks were dropped"):
        replaying.sample(global_steps=1, partition_id="val", batch_size=1)


@pytest.mark.parametrize("partition", ["train", "val"])
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_cannot_go_on_ends_with_the_rollouts_own_words(empty_queue, rollouts, sampler, mode, partition):
    """`sync` ended with "no materializable trajectories", the asynchronous modes drew other prompts, without end."""
    name = "ReplaySampler" if mode == "sync" else "ReplaySamplerAsync"
    replaying = sampler(f"trainer.v1.sampler.custom_sampler.name={name}", trainer_mode=mode)
    rollouts.put("p1", [rollouts.output("a", 0.0, seed=1)], partition_id=partition)
    replaying.replayer.desktops._pool = SimpleNamespace(refusal=lambda: "judge returned nan for task a")
    with pytest.raises(ConfigError, match="judge returned nan for task a"):
        replaying.sample(global_steps=1, partition_id=partition, batch_size=1)


@pytest.mark.parametrize(("success", "format_error"), [(math.nan, 0.0), (1.0, math.inf)])
def test_a_reward_of_another_agent_loop_that_is_not_finite_is_refused_before_the_update(
    empty_queue, rollouts, sampler, success, format_error
):
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1), rollouts.output("a", success, 2, format_error=format_error)])
    with pytest.raises(ConfigError, match=r"finite numbers, got .* for task a \(row p1_1_0\)"):
        sampler().sample(global_steps=1, partition_id="train", batch_size=1)


def test_a_group_with_missing_sessions_is_replayed_into_unless_one_is_left(empty_queue, rollouts, sampler):
    tq, replaying = empty_queue, sampler()
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1)])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    rollouts.put("p2", [None, rollouts.output("a", 0.0, seed=2), None, rollouts.output("a", 0.0, seed=3)], step=2)
    rollouts.put("p3", [None, None, rollouts.output("a", 0.0, seed=4)], step=2)
    batch, metrics = replaying.sample(global_steps=2, partition_id="train", batch_size=2)
    (key,) = replayed_keys(batch)
    assert key.startswith("p2_") and metrics["replay/missed"] == 1
    advantages = advantages_of(tq, batch, recipe_of(replaying))
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


def logged_groups(folder, step):
    lines = (folder / f"step_{step:06d}" / "groups.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def members(*rows):
    return [dict(zip(("session", "reward", "advantage", "replay"), row, strict=True)) for row in rows]


@pytest.mark.parametrize("mode", MODES)
def test_the_groups_of_a_batch_are_logged_as_they_are_trained_on(empty_queue, rollouts, sampler, tmp_path, mode):
    name = "ReplaySampler" if mode == "sync" else "ReplaySamplerAsync"
    names = f"trainer.v1.sampler.custom_sampler.name={name}"
    tq, replaying = empty_queue, sampler(names, RECORDED_IN + str(tmp_path), trainer_mode=mode)
    outputs = [rollouts.output("a", 1.0, seed=1), rollouts.output("a", 0.0, seed=2, format_error=1.0)]
    rollouts.put("p1", outputs, step=4)  # an asynchronous trainer trains on it later
    batch, _ = replaying.sample(global_steps=5, partition_id="train", batch_size=1)
    advantages_of(tq, batch, recipe_of(replaying))
    (group,) = logged_groups(tmp_path, 5)
    assert {key: group[key] for key in group if key != "rows"} == {
        **{"uid": "p1", "task_id": "a", "step": 5, "drawn_in": 4}
    }
    (first, second) = group["rows"]
    assert first == {**first, "session": 0, "reward": 1.0, "replay": None} and second["reward"] == -0.5
    assert (first["advantage"], second["advantage"]) == pytest.approx((1, -1), abs=1e-4)
    tq.kv_clear(keys=batch.keys, partition_id="train")

    rollouts.put("p2", [rollouts.output("a", 0.0, seed=i, step=6) for i in (3, 4, 5)], step=6)
    rollouts.put("p3", [rollouts.output("b", 1.0, seed=i, step=6) for i in (6, 7)], step=6)
    batch, _ = replaying.sample(global_steps=6, partition_id="train", batch_size=2)
    # As the trainer pads a batch for its workers.
    batch = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    advantages_of(tq, batch, recipe_of(replaying))
    by_uid = {group["uid"]: group for group in logged_groups(tmp_path, 6)}
    assert by_uid["p3"]["rows"] == members((0, 1.0, 0.0, None), (1, 1.0, 0.0, None))
    rows = by_uid["p2"]["rows"]
    (replayed,) = [row for row in rows if row["replay"] is not None]
    assert replayed["replay"] == {"step": 4, "uid": "p1", "session": 0} and replayed["reward"] == 1.0
    assert replayed["advantage"] == pytest.approx(2**0.5, abs=1e-3)
    assert [row["session"] for row in rows] == [0, 1, 2] and sorted(by_uid) == ["p2", "p3"]


def test_the_groups_of_plain_grpo_are_logged_too(empty_queue, rollouts, sampler, tmp_path):
    tq, replaying = empty_queue, sampler("replay.enable=false", RECORDED_IN + str(tmp_path))
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1), rollouts.output("a", 0.0, seed=2)])
    before = {key: read(tq, key) for key in ("p1_0_0", "p1_1_0")}
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    assert all(equal(row, read(tq, key)) for key, row in before.items())
    advantages = advantages_of(tq, batch, recipe_of(replaying))
    (group,) = logged_groups(tmp_path, 1)
    # By the sample standard deviation, as stock GRPO has it.
    assert [row["advantage"] for row in group["rows"]] == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert [row["advantage"] for row in group["rows"]] == pytest.approx(
        [advantages["p1_0_0"], advantages["p1_1_0"]], abs=1e-4
    )
    assert [row["reward"] for row in group["rows"]] == [1.0, 0.0]


def test_a_replayed_success_gets_its_screenshots_back(empty_queue, rollouts, sampler, tmp_path):
    kept = "+gui_agent.record=failures_and_replays"
    tq, replaying = empty_queue, sampler(kept, RECORDED_IN + str(tmp_path))
    output = rollouts.output("a", 1.0, seed=1)
    screenshots = output.screenshots
    folder = tmp_path / "step_000001" / "a__p1_0"
    folder.mkdir(parents=True)
    (folder / "episode.json").write_text(json.dumps({"task_id": "a", "screenshots": ["00.png", "01.png"]}))
    rollouts.put("p1", [output])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    assert [path.name for path in folder.iterdir()] == ["episode.json"]
    rollouts.put("p2", [rollouts.output("a", 0.0, seed=i, step=2) for i in (2, 3)], step=2)
    replaying.sample(global_steps=2, partition_id="train", batch_size=1)
    replaying.replayer.records.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["00.png", "01.png", "episode.json"]
    for name, sent in zip(("00.png", "01.png"), screenshots, strict=True):
        content = (folder / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert decode_screenshot(content).tobytes() == decode_screenshot(sent).tobytes()


def test_what_a_killed_run_left_unfinished_goes_before_the_first_episode(sampler, tmp_path):
    finished, left = (tmp_path / "step_000001" / name for name in ("a__p0_0", ".a__p0_1-abc"))
    finished.mkdir(parents=True), left.mkdir()
    sampler(RECORDED_IN + str(tmp_path))
    assert finished.exists() and not left.exists()


def test_async_neither_drops_an_old_replay_nor_keeps_a_stale_group_for_one(empty_queue, rollouts, sampler):
    """veRL's staleness limit, 8 versions by default, is about rollouts; a group whose session failed is replaced."""
    tq = empty_queue
    replaying = sampler("trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync", trainer_mode="separate_async")
    assert isinstance(replaying, ReplayBufferAsync)
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1)])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    failing = {
        uid: [rollouts.output("a", 0.0, seed=seed + i, step=20) for i in (0, 1)] for uid, seed in (("p2", 2), ("p3", 4))
    }
    rollouts.put("p2", failing["p2"], step=12)
    rollouts.put("p3", failing["p3"], step=20)
    rollouts.put("p4", [*failing["p3"], None], step=20)
    batch, metrics = replaying.sample(global_steps=20, partition_id="train", batch_size=1)
    assert {key.split("_")[0] for key in batch.keys} == {"p3"} and len(replayed_keys(batch)) == 1
    assert metrics["training/off_policy/evicted_samples"] == 1
    assert metrics["training/rollout_failure/evicted_samples"] == 1
    assert metrics["replay/without/training/off_policy/trajectory_staleness/mean"] == 0
    assert batch.tags[batch.keys.index(replayed_keys(batch)[0])]["max_global_steps"] == 0


def test_what_groups_won_that_are_thrown_away_is_kept(empty_queue, rollouts, sampler):
    """One session in a hundred meets a fault: its seven siblings may hold a hard task's only success."""
    names = "trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync"
    tq, replaying = empty_queue, sampler(names, trainer_mode="colocate_async")
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1, step=20), None], step=20)
    rollouts.put("p2", [rollouts.output("b", float(i), seed=2 + i) for i in (0, 1)], step=1)  # stale: limit 8
    rollouts.put("p3", [rollouts.output("a", 0.0, seed=i, step=20) for i in (4, 5)], step=20)
    batch, metrics = replaying.sample(global_steps=20, partition_id="train", batch_size=1)
    assert sorted(batch.keys) == ["p3_0_0", "p3_1_0"]
    # Not into the step that made them.
    assert metrics["replay/injected"] == 0 and metrics["replay/missed"] == 1
    assert (metrics["replay/stored"], metrics["replay/stored_untrained"]) == (2, 2)
    kept = [(t.task_id, t.step, t.episode.step, t.episode.uid) for t in replaying.replayer.store.trajectories()]
    assert sorted(kept) == [("a", 20, 20, "p1"), ("b", 1, 1, "p2")]
    assert metrics["rollout/success_mean"] == 2 / 5, "all that was played, trained on or not"
    tq.kv_clear(keys=batch.keys, partition_id="train")
    assert not tq.kv_list("train").get("train")
    rollouts.put("p4", [rollouts.output("b", 0.0, seed=i, step=21) for i in (6, 7)], step=21)
    _, metrics = replaying.sample(global_steps=21, partition_id="train", batch_size=1)
    assert metrics["replay/injected"] == 1 and metrics["replay/stored_untrained"] == 0


def open_frontier(replaying):
    """What the run's dataset would draw from: tasks a and b, in groups of two, that fade at once."""
    opened = Frontier(["a", "b"], 2, FrontierConfig(half_life_steps=1), seed=1)
    replaying.replayer.state.frontier = opened
    return opened


def counts(frontier):
    return {task_id: row[:2] for task_id, row in frontier.state_dict()["tasks"].items()}


def test_the_frontier_hears_of_every_group_once_and_of_no_replay(empty_queue, rollouts, sampler, tmp_path):
    replaying = sampler(RECORDED_IN + str(tmp_path))
    frontier = open_frontier(replaying)
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1), rollouts.output("a", 0.0, seed=2)])
    rollouts.put("q1", [rollouts.output("b", 0.0, seed=3), None])  # the session that is missing failed nothing
    batch, metrics = replaying.sample(global_steps=1, partition_id="train", batch_size=2)
    assert counts(frontier) == {"a": [1, 1], "b": [0, 1]}
    assert metrics["rollout/informative_share"] == 0.5 and metrics["frontier/tasks_unseen"] == 2
    empty_queue.kv_clear(keys=batch.keys, partition_id="train")
    # A replay takes a failure's place: what was played were two failures.
    rollouts.put("p2", [rollouts.output("a", 0.0, seed=i, step=2) for i in (4, 5)], step=2)
    _, metrics = replaying.sample(global_steps=2, partition_id="train", batch_size=1)
    assert metrics["replay/injected"] == 1
    assert counts(frontier) == {"a": [0.5, 2.5], "b": [0, 0.5]}
    replaying.replayer.records.wait()
    lines = [json.loads(line) for line in (tmp_path / "frontier.jsonl").read_text().splitlines()]
    assert [(line["step"], [task["task_id"] for task in line["tasks"]]) for line in lines] == [
        (1, ["a", "b"]),
        (2, ["a"]),
    ]


def test_a_task_that_jumps_to_100_percent_is_counted_and_recorded(empty_queue, rollouts, sampler, tmp_path):
    replaying = sampler(RECORDED_IN + str(tmp_path))
    for step in range(1, 6):
        played = [rollouts.output("a", float(step == 5), seed=2 * step + i, step=step) for i in (0, 1)]
        rollouts.put(f"p{step}", played, step=step)
        batch, metrics = replaying.sample(global_steps=step, partition_id="train", batch_size=1)
        empty_queue.kv_clear(keys=batch.keys, partition_id="train")
        assert metrics["rollout/tasks_jumped"] == float(step == 5)
    replaying.replayer.records.wait()
    jump = {"task_id": "a", "step": 5, "earlier": 8, "uid": "p5", "session": 0}
    assert [json.loads(line) for line in (tmp_path / "jumps.jsonl").read_text().splitlines()] == [jump]


def test_the_frontier_hears_of_groups_that_are_thrown_away(empty_queue, rollouts, sampler):
    names = "trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync"
    replaying = sampler(names, trainer_mode="colocate_async")
    frontier = open_frontier(replaying)
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1, step=20), None], step=20)
    rollouts.put("p2", [rollouts.output("b", float(i), seed=2 + i) for i in (0, 1)], step=1)  # stale
    rollouts.put("p3", [rollouts.output("a", 0.0, seed=i, step=20) for i in (4, 5)], step=20)
    replaying.sample(global_steps=20, partition_id="train", batch_size=1)
    assert counts(frontier) == {"a": [1, 2], "b": [1, 1]}


def test_a_resumed_queue_loses_the_rows_that_were_trained_on(empty_queue, rollouts, sampler, tmp_path):
    """veRL saves the queue with the batch that it has just trained on, whose prompts have left already."""
    names = "trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync"
    tq, replaying = empty_queue, sampler(names, trainer_mode="colocate_async")
    rollouts.put("p1", [rollouts.output("a", float(i), seed=i) for i in (0, 1)])
    rollouts.put("p2", [rollouts.output("b", float(i), seed=2 + i) for i in (0, 1)], step=2)  # a batch ahead
    trained, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    tq.save_checkpoint(tmp_path / "transfer_queue")
    tq.kv_clear(keys=trained.keys, partition_id="train")
    tq.kv_clear(keys=["p2", "p2_0_0", "p2_1_0"], partition_id="train")
    tq.load_checkpoint(tmp_path / "transfer_queue")
    assert set(tq.kv_list("train")["train"]) == {*trained.keys, "p2", "p2_0_0", "p2_1_0"}

    resumed = sampler(names, trainer_mode="colocate_async")
    batch, _ = resumed.sample(global_steps=2, partition_id="train", batch_size=1)
    assert sorted(batch.keys) == sorted(tq.kv_list("train")["train"]) == ["p2_0_0", "p2_1_0"]
    # The batches of one step stay until all of them are trained on.
    rollouts.put("p3", [rollouts.output("c", float(i), seed=4 + i, step=2) for i in (0, 1)], step=2)
    second, _ = resumed.sample(global_steps=2, partition_id="train", batch_size=1)
    assert sorted(tq.kv_list("train")["train"]) == sorted([*batch.keys, *second.keys])


def test_counts_of_a_step_of_several_batches_are_sums(empty_queue, rollouts, sampler):
    """As veRL's aggregator takes them: it logs the mean over the batches of what says nothing else in its name."""
    names = "trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync"
    replaying = sampler(names, "trainer.v1.separate_async.parameter_sync_step=2", trainer_mode="separate_async")
    of_pool = {"environment/leases": 32.0, "environment/lease_wait_s/mean": 0.5}
    readings = []
    replaying.replayer.desktops.read = lambda: readings.append(of_pool) or of_pool
    for step in (1, 2):
        logged = MetricsAggregator()
        for number, scores in enumerate([(1.0, 0.0), (0.0, 0.0)]):
            make = rollouts.output if number else rollouts.rows  # three rows each: veRL would weigh them thrice
            outputs = [make("a", s, seed=10 * step + i, step=step) for i, s in enumerate(scores)]
            rollouts.put(f"p{step}{number}", outputs, step)
            batch, metrics = replaying.sample(global_steps=step, partition_id="train", batch_size=1)
            logged.add_step_metrics(metrics, sample_count=len(batch))
            empty_queue.kv_clear(keys=batch.keys, partition_id="train")
        values = logged.get_aggregated_metrics()
        # The success of the first batch is replayed into the second.
        names = ("groups_all_failed", "groups_mixed", "injected", "missed", "stored", "store_trajectories")
        assert [values[f"replay/{name}"] for name in names] == [1, 1, 1, 0, 1, step]
        assert values["rollout/success_mean"] == 0.25 and values["rollout/turns_mean"] == 3
        assert {name: values[name] for name in of_pool} == of_pool and len(readings) == step


def stored_success(rollouts, seed, step=1, **changes):
    output = rollouts.output("a", 1.0, seed=seed, step=step)
    columns = {name: getattr(output, name) for name in ("prompt_ids", "response_ids", "response_mask", "screenshots")}
    content = task_content("Wait, please.", None)
    return stored(step=step, rollout_log_probs=output.response_logprobs, task_content=content, **{**columns, **changes})


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_a_prompt_that_is_played_again_keeps_its_success_and_no_record_of_what_nobody_trains_on(
    empty_queue, rollouts, sampler, tmp_path, mode
):
    """veRL clears the finished sessions of an unfinished prompt, and plays all of it under the same uid."""
    names = ["trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync"]
    names += ["trainer.v1.separate_async.parameter_sync_step=1", RECORDED_IN + str(tmp_path)]
    replaying = sampler(*names, trainer_mode=mode)
    rollouts.put("p1", [rollouts.output("a", score, seed=i, step=4) for i, score in enumerate((1.0, 0.0))], step=4)
    rollouts.put("q1", [rollouts.output("b", 0.0, seed=i, step=4) for i in (2, 3)], step=4)
    tag = {"is_prompt": True, "status": "running", "global_steps": 4}
    queue.write(["p1"], "train", [{"uid": "p1", "dummy_tensor": torch.zeros(1)}], [tag])
    folders = [f"step_000004/{name}" for name in ("a__p1_0", "a__p1_1", "b__q1_0", "b__q1_1")]
    folders += ["step_000006/a__p1_1"]  # it ended after the checkpoint
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)

    replaying.replayer.state.before_rollouts()
    played = [rollouts.output("a", 0.0, seed=i, step=5) for i in (4, 5)]
    manager = SimpleNamespace(generate_sequences=lambda batch: rollouts.put("p1", played, step=5))
    trainer = SimpleNamespace(trainer_mode=mode, global_steps=5, agent_loop_manager=manager)
    assert PPOTrainer._reissue_inflight_prompts(trainer) == 1
    batch, metrics = replaying.sample(global_steps=5, partition_id="train", batch_size=2)
    assert sorted(batch.keys) == ["p1_0_0", "p1_1_0", "q1_0_0", "q1_1_0"]
    assert metrics["replay/stored_untrained"] == 1 and metrics["rollout/success_mean"] == 1 / 6
    (success,) = replaying.replayer.store.trajectories()
    assert (success.task_id, success.episode) == ("a", EpisodeId(4, "p1", 0))
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("step_*/*")}
    assert left & {*folders} == {"step_000004/a__p1_0", "step_000004/b__q1_0", "step_000004/b__q1_1"}


FILTER = "algorithm.filter_groups.enable=true"


@pytest.mark.parametrize("mode", MODES)
def test_replay_comes_first_and_then_the_filter_and_what_it_drops_is_kept(empty_queue, rollouts, sampler, mode):
    name = "trainer.v1.sampler.custom_sampler.name=" + ("ReplaySampler" if mode == "sync" else "ReplaySamplerAsync")
    tq, replaying = empty_queue, sampler(name, FILTER, trainer_mode=mode)
    drawn, refills = [], iter("uvwxyz")

    def draw(num_prompts):
        drawn.append(num_prompts)
        for _ in range(num_prompts):
            uid = next(refills)
            outputs = [rollouts.output(uid, float(i), seed=ord(uid) + i, step=step) for i in (0, 1)]
            rollouts.put(uid, outputs, step=step + 1)  # veRL takes the older ones first

    replaying.refill_fn = draw
    step = 1
    rollouts.put("p1", [rollouts.output("a", float(i), seed=i) for i in (0, 1)])
    rollouts.put("q1", [rollouts.output("b", 0.0, seed=i) for i in (2, 3)])
    batch, metrics = replaying.sample(global_steps=1, partition_id="train", batch_size=2)
    # Nothing is stored of b: its group goes. In sync two are drawn for one, and the surplus is discarded.
    assert {key.split("_")[0] for key in batch.keys} <= {"p1", "u", "v"} and len(batch) == 4
    assert drawn == [2 if mode == "sync" else 1] and metrics["training/filter_groups/evicted_samples"] == 1
    assert metrics["replay/informative_share"] == 1 and metrics["replay/injected"] == 0
    stored = {t.task_id for t in replaying.replayer.store.trajectories()}
    assert stored == ({"a", "u", "v"} if mode == "sync" else {"a", "u"}), "the surplus's successes too"
    assert metrics["rollout/success_mean"] == (3 / 8 if mode == "sync" else 2 / 6)
    tq.kv_clear(keys=batch.keys, partition_id="train")

    step = 2
    rollouts.put("p2", [rollouts.output("a", 0.0, seed=i, step=2) for i in (4, 5)], step=2)
    rollouts.put("p3", [rollouts.output("a", 0.0, seed=i, step=2) for i in (6, 7)], step=2)
    rollouts.put("q2", [rollouts.output("b", 1.0, seed=i, step=2) for i in (8, 9)], step=2)
    batch, metrics = replaying.sample(global_steps=2, partition_id="train", batch_size=2)
    # One success of a, one group that stays for it; the other and the one that all solved go.
    assert {key.split("_")[0] for key in batch.keys} & {"p2", "p3", "q2"} == {"p2"} and len(batch) == 4
    assert metrics["training/filter_groups/evicted_samples"] == 2
    assert metrics["replay/injected"] == 1 and metrics["replay/informative_share"] == 1
    (key,) = replayed_keys(batch)
    assert key.startswith("p2_") and advantages_of(tq, batch, recipe_of(replaying))[key] == pytest.approx(1, abs=1e-4)
    assert "b" in {t.task_id for t in replaying.replayer.store.trajectories()}


def test_a_group_that_stays_for_its_replay_gets_it_whatever_leaves_before_it(empty_queue, rollouts, sampler):
    """What a group gets depends on how many of its task came before: those that were thrown away still count."""
    replaying = sampler(FILTER, "+replay.capacity_per_task=4")
    replayer = replaying.replayer
    rollouts.put("p", [rollouts.output("a", 1.0, seed=i) for i in range(8)] + [rollouts.output("a", 0.0, seed=9)])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    empty_queue.kv_clear(keys=batch.keys, partition_id="train")
    for number in range(8):
        rollouts.put(f"q{number}", [rollouts.output("a", 0.0, seed=20 + i, step=2, turns=1) for i in (0, 1)], step=2)
    keys = [f"q{number}_{i}_0" for number in range(8) for i in (0, 1)]
    replayer.begin(2)
    kept = replayer.replayed_uids(keys)
    assert len(kept) == 4
    left = [key for key in keys if key.split("_")[0] in kept]
    assert replayer.replayed_uids(left) == kept
    groups = form_groups(rows.read_outcomes(left, "train"))
    assert {replacement.outcome.uid for replacement in replayer._plan(groups)} == kept


def test_what_each_of_a_tasks_groups_gets_does_not_depend_on_which_ends_first(empty_queue, rollouts, sampler):
    """A rerun has the same rows of tasks, and with the frontier the same draws, but other uids and another order."""
    replayer = sampler().replayer
    for step in (1, 2, 3, 4):
        replayer.store.add(stored_success(rollouts, seed=step, step=step))
    chosen = set()
    for run, order in enumerate(itertools.permutations(range(3))):
        for row in order:
            failed = [rollouts.output("a", 0.0, seed=row, turns=1)] * 2
            rollouts.put(f"{run}x{row}", failed, **({"index": row} if run % 2 else {"index": 0, "draw": row}))
        outcomes = rows.read_outcomes([f"{run}x{row}_{session}_0" for row in order for session in (0, 1)], "train")
        plan = replayer._plan(form_groups(outcomes))
        chosen.add(frozenset((one.outcome.key[2:], one.candidate.step) for one in plan))
    assert len(chosen) == 1 and len(*chosen) == 3


def test_a_success_of_less_reward_than_todays_failures_is_left_out_and_counted(empty_queue, rollouts, sampler):
    replaying = sampler()
    replaying.replayer.store.add(stored_success(rollouts, seed=1))
    shaped = [rollouts.output("a", 0.0, seed=i).model_copy(update={"reward_score": 2.0}) for i in (2, 3)]
    rollouts.put("p1", shaped)
    batch, metrics = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    assert replayed_keys(batch) == []
    assert (metrics["replay/no_gain"], metrics["replay/missed"], metrics["replay/injected"]) == (1, 1, 0)


def test_a_filter_that_throws_groups_away_without_end_fills_no_memory(sampler, monkeypatch):
    kept = []

    def read(outcomes, *_):
        made = [stored(step=len(kept)) for _ in outcomes]
        kept.extend(map(weakref.ref, made))
        return made

    monkeypatch.setattr(rows, "read_outcomes", lambda keys, _: [outcome(0, 1.0, uid_of(key)) for key in keys])
    monkeypatch.setattr(rows, "read_trajectories", read)
    replayer = sampler("+replay.capacity_per_task=2").replayer
    for number in range(5):
        replayer.evicted({f"p{number}_0_0": {"global_steps": 1}}, "train")
    assert len(kept) == 5 and sum(one() is not None for one in kept) <= 2


def test_without_replay_the_filter_is_verls_own(empty_queue, rollouts, sampler):
    replaying = sampler(FILTER, "replay.enable=false")
    refill = [rollouts.output("c", float(i), seed=8 + i) for i in (0, 1)]
    replaying.refill_fn = lambda number: rollouts.put("r", refill)
    rollouts.put("p", [rollouts.output("a", 0.0, seed=i) for i in (0, 1)])
    batch, metrics = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    assert sorted(batch.keys) == ["r_0_0", "r_1_0"] and metrics["training/filter_groups/evicted_samples"] == 1
    assert metrics["rollout/success_mean"] == 0.25 and len(replaying.replayer.store) == 0


def replayed_batch(tq, rollouts, replaying, demonstration=False):
    """Three rollouts of which one is a replay, of a step-1 success."""
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1)])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    if demonstration:
        store = replaying.replayer.store
        (success,) = store.trajectories()
        store.clear()
        store.add(dataclasses.replace(success, rollout_log_probs=None))
    rollouts.put("p2", [rollouts.output("a", 0.0, seed=i, step=2) for i in (2, 3, 4)], step=2)
    batch, metrics = replaying.sample(global_steps=2, partition_id="train", batch_size=1)
    (key,) = replayed_keys(batch)
    return batch, metrics, key


def test_how_far_a_replay_is_from_the_policy_is_told_and_changes_no_advantage(empty_queue, rollouts, sampler):
    batch, metrics, key = replayed_batch(empty_queue, rollouts, replaying := sampler())
    advantages = advantages_of(empty_queue, batch, recipe_of(replaying), dict.fromkeys(batch.keys, -0.1) | {key: 0.5})
    expected = {k: math.sqrt(2) if k == key else -1 / math.sqrt(2) for k in batch.keys}
    assert advantages == pytest.approx(expected, abs=1e-4)
    logged = MetricsAggregator()
    logged.add_step_metrics(metrics)
    assert logged.get_aggregated_metrics()["replay/ratio_mean"] == pytest.approx(math.exp(0.5), rel=1e-5)


def test_a_demonstration_without_log_probs_is_replayed_like_any_other(empty_queue, rollouts, sampler):
    batch, metrics, key = replayed_batch(empty_queue, rollouts, replaying := sampler(), demonstration=True)
    row = read(empty_queue, key)
    assert row["rollout_log_probs"].tolist() == [0.0] * len(row["responses"])
    assert advantages_of(empty_queue, batch, recipe_of(replaying), {key: -3.0})[key] == pytest.approx(
        math.sqrt(2), abs=1e-4
    )
    assert metrics["replay/ratio_mean"].numel() == 0  # nothing to compare with: not logged


def test_verls_own_correction_leaves_a_demonstration_alone(empty_queue, rollouts, sampler):
    """Its row carries zeros for log-probs: as if certain, each token would be weighed by its own probability."""
    replaying = sampler("algorithm.rollout_correction.rollout_is=token")
    batch, _, key = replayed_batch(empty_queue, rollouts, replaying, demonstration=True)
    shifts = dict.fromkeys(batch.keys, -0.5) | {key: -3.0}
    advantages_of(empty_queue, batch, recipe_of(replaying), shifts)
    for each in batch.keys:
        row = read(empty_queue, each)
        weights = row["rollout_is_weights"][row["response_mask"].bool()]
        assert torch.allclose(weights, torch.tensor(1.0 if each == key else math.exp(-0.5))), each
    assert read(empty_queue, key)["rollout_log_probs"].abs().max() == 0


def test_verls_own_correction_weighs_a_replay_by_its_makers_log_probs(empty_queue, rollouts, sampler):
    replaying = sampler("algorithm.rollout_correction.rollout_is=token")
    batch, _, key = replayed_batch(empty_queue, rollouts, replaying)
    advantages_of(empty_queue, batch, recipe_of(replaying), dict.fromkeys(batch.keys, 0.0) | {key: -1.0})
    row = read(empty_queue, key)
    assert torch.allclose(row["rollout_is_weights"][row["response_mask"].bool()], torch.tensor(math.exp(-1.0)))


def test_a_replay_that_verls_own_correction_rejects_ends_no_step(empty_queue, rollouts, sampler):
    replaying = sampler("+algorithm.rollout_correction={rollout_rs: seq_mean_k1, rollout_rs_threshold: 0.5_2.0}")
    batch, metrics, key = replayed_batch(empty_queue, rollouts, replaying)
    advantages_of(empty_queue, batch, recipe_of(replaying), dict.fromkeys(batch.keys, 0.0) | {key: -3.0})
    row = read(empty_queue, key)
    assert not row["response_mask"].any(), "rejected"
    assert metrics["replay/ratio_mean"].numel() == 0


def test_the_trainers_metrics_are_told_without_the_replay(empty_queue, rollouts, sampler):
    """veRL's own functions over the same rows but one, padding rows left out as veRL leaves them out."""
    batch, metrics, key = replayed_batch(empty_queue, rollouts, replaying := sampler())
    own = [k for k in batch.keys if k != key]
    padded = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    padded.reorder([3, 1, 0, 2])
    # The replay's tokens are likelier by e^2 than when they were written; the others by no more than rounding.
    advantages_of(empty_queue, padded, recipe_of(replaying), {key: 2.0})
    logged = MetricsAggregator()
    logged.add_step_metrics(metrics)
    values = logged.get_aggregated_metrics()
    assert values["replay/without/critic/score/mean"] == 0.0
    assert values["replay/without/critic/advantages/mean"] == pytest.approx(-1 / math.sqrt(2), abs=1e-4)
    assert values["replay/without/training/rollout_probs_diff_max"] == pytest.approx(0, abs=1e-6)
    lengths = [len(read(empty_queue, k)["responses"]) for k in own]
    assert values["replay/without/response_length/mean"] == pytest.approx(sum(lengths) / len(lengths))
    assert values["replay/without/num_turns/mean"] == 4


def test_replays_are_rebuilt_while_other_groups_still_generate(empty_queue, rollouts, sampler, monkeypatch):
    """At the first look one group has failed and one is running: veRL waits only once there is nothing to rebuild."""
    waits = []

    def other_group_ends(self, partition_id, last_debug_time):
        waits.append(len(rebuilt))
        rollouts.put("p3", [rollouts.output("b", 0.0, seed=i, step=2) for i in (4, 5)], step=2)
        return last_debug_time

    rebuilt = []
    rebuild = rows.rebuild_rows
    monkeypatch.setattr(rows, "rebuild_rows", lambda *args: rebuilt.append(args[0].task_id) or rebuild(*args))
    monkeypatch.setattr(ReplayBuffer, "_wait_for_next_poll", other_group_ends)
    for prefetch, ahead in ((4, ["a"]), (0, [])):
        replaying = sampler(f"+replay.prefetch={prefetch}")
        rollouts.put("p1", [rollouts.output("a", 1.0, seed=1)])
        batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
        empty_queue.kv_clear(keys=batch.keys, partition_id="train")
        waits.clear(), rebuilt.clear()
        rollouts.put("p2", [rollouts.output("a", 0.0, seed=i, step=2) for i in (2, 3)], step=2)
        batch, metrics = replaying.sample(global_steps=2, partition_id="train", batch_size=2)
        assert waits == [len(ahead)] and rebuilt == ["a"]
        assert metrics["replay/injected"] == 1 and metrics["replay/prefetched"] == len(ahead)
        assert len(replayed_keys(batch)) == 1
        empty_queue.kv_clear(keys=batch.keys, partition_id="train")


def test_a_success_that_cannot_be_replayed_leaves_the_store_and_is_counted(empty_queue, rollouts, sampler, caplog):
    replaying = sampler()
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1)])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    empty_queue.kv_clear(keys=batch.keys, partition_id="train")
    store = replaying.replayer.store
    (good,) = store.trajectories()
    store.remove(0)
    store.add(dataclasses.replace(good, screenshots=[good.screenshots[0][:-200], good.screenshots[1]]))
    for step in (2, 3):
        rollouts.put(f"p{step}", [rollouts.output("a", 0.0, seed=i, step=step) for i in (2, 3)], step=step)
        batch, metrics = replaying.sample(global_steps=step, partition_id="train", batch_size=1)
        empty_queue.kv_clear(keys=batch.keys, partition_id="train")
        assert metrics["replay/unusable"] == (step == 2) and metrics["replay/injected"] == (step == 3)
        assert len(store) == step - 2
        store.add(good)
    assert "removed from the store: a success of task a in step 1 cannot be replayed" in caplog.text


def test_a_task_that_changed_under_its_id_gets_no_success_from_before(empty_queue, rollouts, sampler):
    """Else a way around an evaluator would be taught after the evaluator was mended."""
    replaying = sampler()
    told = []
    for step, func in enumerate(("is_lax", "is_lax", "is_strict", "is_lax"), 1):
        spec = json.dumps({"id": "a", "instruction": "Wait, please.", "evaluator": {"func": func}})
        played = [rollouts.output("a", float(step == 1), seed=2 * step + i, step=step) for i in (0, 1)]
        rollouts.put(f"p{step}", played, step=step, spec=spec)
        batch, metrics = replaying.sample(global_steps=step, partition_id="train", batch_size=1)
        empty_queue.kv_clear(keys=batch.keys, partition_id="train")
        told.append((metrics["replay/injected"], metrics["replay/changed_task"]))
    assert told == [(0, 0), (1, 0), (0, 2), (1, 0)]


def test_a_success_that_is_longer_than_this_runs_rows_is_not_replayed(empty_queue, rollouts, sampler, caplog):
    replaying = sampler("data.max_response_length=16")
    replaying.replayer.store.add(stored_success(rollouts, seed=1))
    rollouts.put("p1", [rollouts.output("a", 0.0, seed=i, turns=1) for i in (2, 3)])
    _, metrics = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    assert metrics["replay/unusable"] == 1 and metrics["replay/injected"] == 0
    assert "a response's tokens must be at most 16 in this run" in caplog.text


def test_the_store_goes_on_where_the_checkpoint_left_it(empty_queue, rollouts, sampler, tmp_path):
    """What the sampler stored, the sampler of a resumed run replays; a changed prompt is refused."""
    resume = ["trainer.resume_mode=auto", f"trainer.default_local_dir={tmp_path}"]
    replaying = sampler(*resume)
    rollouts.put("p1", [rollouts.output("a", 1.0, seed=1)])
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
    empty_queue.kv_clear(keys=batch.keys, partition_id="train")
    replaying.replayer.save(tmp_path / "global_step_1" / "replay")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")

    resumed = sampler(*resume)
    assert resumed.replayer.store.trajectories() == replaying.replayer.store.trajectories()
    rollouts.put("p2", [rollouts.output("a", 0.0, seed=i, step=2) for i in (2, 3)], step=2)
    batch, metrics = resumed.sample(global_steps=2, partition_id="train", batch_size=1)
    assert metrics["replay/injected"] == 1
    with pytest.raises(ReplayError, match="another prompt"):
        sampler(*resume, "+replay.on_bad_store=refuse", "+gui_agent.model_family=small")


def test_rows_of_another_agent_loop_are_refused_by_what_they_lack(empty_queue, rollouts, sampler):
    output = rollouts.output("a", 1.0, seed=1)
    del output.extra_fields["success"], output.extra_fields["num_turns"]
    rollouts.put("p1", [output])
    with pytest.raises(ReplayError, match="success, num_turns is missing"):
        sampler().sample(global_steps=1, partition_id="train", batch_size=1)
    for key in ("p1", "p1_0_0"):
        empty_queue.kv_clear(keys=[key], partition_id="train")
    ours = dict(rollouts.output("a", 1.0, seed=1))
    del ours["screenshots"]
    rollouts.put("p2", [AgentLoopOutput(**ours)])
    with pytest.raises(ReplayError, match="must have its screenshots in a column"):
        sampler().sample(global_steps=1, partition_id="train", batch_size=1)


def test_screenshots_are_read_of_successes_alone(empty_queue, rollouts, sampler, monkeypatch):
    """A batch's outcomes are a few scalars a row: 480 screenshots of 1080p were half a gigabyte a step."""
    read_columns = []
    get = queue.read

    def counted(keys, partition_id, fields=None):
        read_columns.append((tuple(keys), tuple(fields or ())))
        return get(keys, partition_id, fields)

    monkeypatch.setattr(queue, "read", counted)
    rollouts.put("p1", [rollouts.output("a", float(i == 2), seed=i) for i in range(4)])
    rollouts.put("p2", [rollouts.output("b", 0.0, seed=10 + i) for i in range(4)])
    replaying = sampler()
    batch, _ = replaying.sample(global_steps=1, partition_id="train", batch_size=2)
    assert {keys for keys, columns in read_columns if "screenshots" in columns} == {("p1_2_0",)}
    assert any(set(keys) == set(batch.keys) for keys, _ in read_columns)
    row = read(empty_queue, "p1_0_0")
    assert len(pickle.dumps(row["extra_fields"])) < 1000 < len(pickle.dumps(row["screenshots"]))
    (success,) = replaying.replayer.store.trajectories()
    assert list(success.screenshots) == rollouts.output("a", 1.0, seed=2).screenshots


def test_a_group_all_of_whose_sessions_were_dropped_leaves_a_hole_or_is_drawn_anew(empty_queue, rollouts, sampler):
    def fill():
        rollouts.put("p1", [None, None])
        rollouts.put("p2", [rollouts.output("b", 1.0, seed=2), None])

    fill()
    batch, _ = sampler().sample(global_steps=1, partition_id="train", batch_size=2)
    assert sorted(batch.keys) == ["p2_0_0"], "veRL trains on fewer"
    empty_queue.kv_clear(keys=batch.keys, partition_id="train")
    fill()
    refilling = sampler("trainer.v1.sampler.sync_refill_failed_groups=true")
    drawn = []

    def draw(num_prompts):
        drawn.append(num_prompts)
        rollouts.put("p3", [rollouts.output("c", 0.0, seed=3), rollouts.output("c", 0.0, seed=4)])

    refilling.refill_fn = draw
    batch, metrics = refilling.sample(global_steps=1, partition_id="train", batch_size=2)
    assert sorted(batch.keys) == ["p2_0_0", "p3_0_0", "p3_1_0"] and drawn == [1]
    assert metrics["training/rollout_failure/evicted_samples"] == 1


def test_the_jobs_desktops_boot_with_the_sampler_and_are_read_with_the_step(empty_queue, rollouts, sampler):
    environment = ["+environment.provider=fake", "+environment.num_desktops=1"]
    with pytest.raises(
        ConfigError, match="needs room for 1 desktop workers of environment.worker_resources.desktop_host"
    ):
        sampler(*environment, "+environment.worker_resources={desktop_host: 1}")
    replaying = sampler(*environment)
    pool = DesktopPool.connect(EnvironmentConfig(provider="fake", num_desktops=1))
    try:
        eventually(lambda: pool.status()["desktops_idle"])
        rollouts.put("p1", [rollouts.output("a", 0.0, seed=1, turns=1)])
        _, metrics = replaying.sample(global_steps=1, partition_id="train", batch_size=1)
        assert metrics["environment/boots"] == 1.0 and metrics["environment/leases"] == 0.0
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"+{SAMPLER_SECTION}.poll_interval_s=0", "sampler_kwargs.poll_interval_s must be more than 0 s"),
        ("+replay.capacity_per_task=0", "replay.capacity_per_task must be positive"),
        ("+environment.num_desktop=1", "did you mean environment.num_desktops"),
        (f"+{SAMPLER_SECTION}.poll_intervall_s=1", "did you mean trainer.v1.sampler.sampler_kwargs.poll_interval_s"),
    ],
)
def test_a_bad_recipe_is_refused_before_anything_starts(sampler, override, message):
    with pytest.raises(ConfigError, match=message):
        sampler(override)
