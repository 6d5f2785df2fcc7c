"""Credit within an episode from the queue to the advantages: one row or several, replays, padding, metrics."""

from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.loop_harness import DONE, MISS, FakePool, ScriptedEngine, play, recipe
from support.queue_rows import TRAJECTORY_FIELDS, advantages_of, equal, read, replayed_keys, score
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from arpo_verl.errors import ReplayError
from arpo_verl.plugin.estimator import compute_replay_grpo_advantage, group_advantages, group_scales
from arpo_verl.plugin.step_credit import CREDIT_METRICS
from arpo_verl.rollout.screen import CELLS, same_screens, stack, thumbnail
from arpo_verl.rollout.vision import decode_screenshot

pytestmark = pytest.mark.release

ON = ("+algorithm.step_credit.kind=anchor_states", "+algorithm.step_credit.discount=1.0")
ON += ("+trainer.v1.sampler.sampler_kwargs.step_credit=${algorithm.step_credit}",)
BATCH = "+trainer.v1.sampler.sampler_kwargs.batch={ppo_mini_batch_size: 1, n: 4}"


@pytest.fixture
def sampler(compose, model_path):
    """Samplers made by the trainer's own code from a recipe, and the recipe."""

    def make(*overrides):
        config = compose(f"actor_rollout_ref.model.path={model_path}", *ON, *overrides)
        refill = lambda num_prompts: num_prompts  # noqa: E731
        trainer = SimpleNamespace(config=config, trainer_mode="sync", _add_prompts_to_generate=refill)
        return PPOTrainer._build_replay_buffer(trainer), config

    return make


def sample(replaying, step):
    return replaying.sample(global_steps=step, partition_id="train", batch_size=1)


def showing(screens, rows):
    """The same rows, before screens that are each a letter."""
    letters = iter(screens)
    for row in rows if isinstance(rows, list) else [rows]:
        row.thumbnails = [bytes([17 * ord(next(letters)) % 256]) * CELLS for _ in row.screenshots]
    assert next(letters, None) is None
    return rows


def photographed(rows):
    """The same rows, with the thumbnails of their own screenshots, as the agent loop writes them."""
    for row in rows if isinstance(rows, list) else [rows]:
        row.thumbnails = [thumbnail(decode_screenshot(shot)) for shot in row.screenshots]
    return rows


def by_turn(queue, batch, config):
    """What the trainer's own `_compute_advantage` leaves for the actor: the advantage of each turn, by session."""
    advantages_of(queue, batch, config)
    data = queue.kv_batch_get(batch.keys, "train", select_fields=["advantages", "response_mask"])
    rows = dict(zip(batch.keys, zip(data["advantages"], data["response_mask"], strict=True), strict=True))
    turns = {}
    for key in sorted(key for key in rows if not key.startswith("pad")):
        advantages, mask = (column.tolist() for column in rows[key])
        assert not any(a for a, written in zip(advantages, mask, strict=True) if not written)
        runs = [
            set(run) for is_reply, run in groupby(zip(advantages, mask, strict=True), key=lambda x: x[1]) if is_reply
        ]
        assert all(len(run) == 1 for run in runs)  # every token of a turn has the same
        turns.setdefault(int(key.split("_")[1]), []).extend(run.pop()[0] for run in runs)
    return turns


# abcd is solved, abce and af are not; mean 1/3, population sigma sqrt(2)/3.
SIGMA = 2**0.5 / 3
EPISODE = [2 / 3 / SIGMA, -1 / 3 / SIGMA, -1 / 3 / SIGMA]
TURNS = [[1.0, 1.0, 1.0, 0.0], [-0.5, -1.0, -1.0, 0.0], [-0.5, 0.0]]
EXPECTED = {i: [EPISODE[i] + turn / SIGMA for turn in turns] for i, turns in enumerate(TURNS)}


@pytest.mark.parametrize("several", [False, True])
def test_turns_have_the_same_advantages_in_one_row_or_several(empty_queue, rollouts, sampler, several):
    replaying, config = sampler(BATCH)
    make = rollouts.rows if several else rollouts.output
    group = [make("a", 1.0, 1, turns=4), make("a", 0.0, 2, turns=4), rollouts.output("a", 0.0, 3, turns=2)]
    rollouts.put("p1", [showing(screens, rows) for screens, rows in zip(("abcd", "abce", "af"), group, strict=True)])
    batch, metrics = sample(replaying, 1)
    assert len(batch) == (8 if several else 4)  # padding among them
    turns = by_turn(empty_queue, batch, config)
    assert {session: pytest.approx(of, abs=1e-4) for session, of in EXPECTED.items()} == turns
    # a: three rollouts, three turns; b and c: two, two each; d, e and f: alone.
    assert [metrics[name].item() for name in CREDIT_METRICS] == pytest.approx([7 / 10, (3 * 3 + 4 * 2) / 7])


@pytest.mark.parametrize("context", ["full", "window", "segments"])
def test_each_turn_is_known_by_the_screen_that_it_replied_to_in_every_context(
    empty_queue, rollouts, sampler, policy, tokenizer, context
):
    """Rows of the agent loop's own: abcdef is solved, abXdYZ is not."""
    replaying, config = sampler(BATCH)
    agent = {"max_steps": 6, "max_screenshots": 6 if context == "full" else 3, "context": context}
    outputs = []
    for screens, success in (("abcdef", 1.0), ("abXdYZ", 0.0)):
        engine = ScriptedEngine(tokenizer, [f"Thought: one.\n{MISS}"] * 5 + [DONE])
        rows = play(policy, engine, FakePool(), recipe(agent, prompt_length=2048, response_length=4096))
        outputs.append(showing(screens, rows))
        for row in rows if isinstance(rows, list) else [rows]:
            row.reward_score = row.extra_fields["success"] = success
    rollouts.put("p1", outputs)
    batch, _ = sample(replaying, 1)
    turns = by_turn(empty_queue, batch, config)
    shared = [1, 1, 0, 1, 0, 0]
    assert turns[0] == pytest.approx([1 + 2 * met for met in shared], abs=1e-4)
    assert turns[1] == pytest.approx([-1 - 2 * met for met in shared], abs=1e-4)


def test_weight_and_stock_grpos_sigma_where_replay_is_off(empty_queue, rollouts, sampler):
    replaying, config = sampler("replay.enable=false", "+algorithm.step_credit.weight=0.5")
    rollouts.put("p1", [showing("ab", rollouts.output("a", 1.0, 1)), showing("ac", rollouts.output("a", 0.0, 2))])
    batch, metrics = sample(replaying, 1)
    sigma = 0.5**0.5  # of the sample
    expected = {0: [(0.5 + 0.5) / sigma, 0.5 / sigma], 1: [-(0.5 + 0.5) / sigma, -0.5 / sigma]}
    turns = by_turn(empty_queue, batch, config)
    assert {session: pytest.approx(of, abs=1e-4) for session, of in expected.items()} == turns
    assert metrics[CREDIT_METRICS[0]].item() == 0.5


def test_a_group_of_equal_rewards_teaches_nothing_within_episodes_either(empty_queue, rollouts, sampler):
    replaying, config = sampler("algorithm.step_credit.discount=0.5")
    rollouts.put(
        "p1", [showing("ab", rollouts.output("a", 1.0, 1)), showing("abc", rollouts.output("a", 1.0, 2, turns=3))]
    )
    batch, _ = sample(replaying, 1)
    assert by_turn(empty_queue, batch, config) == {0: [0.0] * 2, 1: [0.0] * 3}


def test_a_replayed_success_has_its_thumbnails_again_and_is_compared_with_the_groups_own(
    empty_queue, rollouts, sampler
):
    replaying, config = sampler()
    success = photographed(rollouts.rows("a", 1.0, 1, turns=4))
    rollouts.put("p1", [success, photographed(rollouts.output("a", 0.0, 2))])
    batch, _ = sample(replaying, 1)
    written = [read(empty_queue, key) for key in batch.keys if key.startswith("p1_0")]
    empty_queue.kv_clear(keys=batch.keys, partition_id="train")

    # Two failures that saw the success's first screen, one of which goes.
    failures = [rollouts.output("a", 0.0, seed, 2) for seed in (3, 4)]
    for failure in failures:
        failure.thumbnails = [success[0].thumbnails[0], bytes(range(256)) * (CELLS // 256)]
    rollouts.put("p2", failures, step=2)
    batch, metrics = sample(replaying, 2)
    keys = replayed_keys(batch)
    assert metrics["replay/injected"] == 1 and len(keys) == 3
    for key, original in zip(keys, written, strict=True):
        row = read(empty_queue, key)
        row["extra_fields"] = {name: value for name, value in row["extra_fields"].items() if name != "replayed"}
        for name in (*TRAJECTORY_FIELDS, "thumbnails"):
            assert equal(row[name], original[name]), name
    turns = by_turn(empty_queue, batch, config)
    replay = int(keys[0].split("_")[1])
    # Of rewards 1 and 0 sigma is 1/2. The failure has nobody of its own kind to be compared with.
    shown = stack([shot for row in success for shot in row.thumbnails])
    met = same_screens(shown, shown[:1], 8)[:, 0]  # some are of nearly the same grey
    assert met[0] and not met.all()
    assert turns[replay] == pytest.approx([1 + is_met / 0.5 for is_met in met], abs=1e-4)
    assert turns[1 - replay] == pytest.approx([-1, -1], abs=1e-4)


def test_tokens_that_a_rollout_correction_rejected_get_nothing_and_move_nothing(empty_queue, rollouts, sampler):
    replaying, config = sampler()
    rollouts.put("p1", [showing("ab", rollouts.output("a", 1.0, 1)), showing("ac", rollouts.output("a", 0.0, 2))])
    batch, _ = sample(replaying, 1)
    score(empty_queue, batch)
    data = empty_queue.kv_batch_get(batch.keys, "train", select_fields=["uid", "response_mask", "rm_scores"])
    mask = data["response_mask"].to_padded_tensor(0)
    rewards = data["rm_scores"].to_padded_tensor(0.0)
    index = np.array([getattr(uid, "data", uid) for uid in data["uid"]], dtype=object)
    whole, _ = compute_replay_grpo_advantage(rewards, mask, index, config=config.algorithm)
    rejected = mask.clone()
    start = int(mask[0].argmax())
    rejected[0, start + 1] = 0  # in the middle of the first reply
    advantages, _ = compute_replay_grpo_advantage(rewards, rejected, index, config=config.algorithm)
    assert torch.equal(advantages, whole * rejected) and advantages[0, start] == whole[0, start] > 2


def test_rows_without_thumbnails_are_refused_with_what_to_do(empty_queue, rollouts, sampler):
    replaying, config = sampler()
    rollouts.put("p1", [rollouts.output("a", 1.0, 1), rollouts.output("a", 0.0, 2)])
    batch, _ = sample(replaying, 1)
    with pytest.raises(ReplayError, match="compares screens by the rows' thumbnails, but p1_0_0 has none; train with"):
        by_turn(empty_queue, batch, config)


@pytest.mark.parametrize("std", ["population", "sample"])
def test_the_scale_of_turns_is_what_the_episodes_advantages_were_divided_by(std):
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.3]), ["x", "x", "x", "y", "y", "lone"]
    scales = group_scales(rewards, groups, std=std, epsilon=0.1, divide_by_std=True)
    centred = group_advantages(rewards, groups, std=std, epsilon=0.1, divide_by_std=False)
    assert torch.equal(centred / scales, group_advantages(rewards, groups, std=std, epsilon=0.1))
    assert torch.isinf(scales[3:]).all()
    assert (group_scales(rewards, groups, std=std, epsilon=0.1, divide_by_std=False) == 1).all()


def test_screens_of_any_size_that_a_desktop_sends_are_compared(empty_queue, rollouts, sampler):
    replaying, config = sampler(BATCH)
    group = [rollouts.output("a", success, seed) for seed, success in enumerate([1.0, 0.0])]
    sizes = [[(640, 480), (7680, 4320)], [(640, 480), (1, 1)]]
    for output, of in zip(group, sizes, strict=True):
        output.thumbnails = [thumbnail(Image.new("RGB", size)) for size in of]
    rollouts.put("p1", group)
    batch, _ = sample(replaying, 1)
    turns = by_turn(empty_queue, batch, config)
    assert turns == {0: pytest.approx([3, 3], abs=1e-4), 1: pytest.approx([-3, -3], abs=1e-4)}  # black is black
