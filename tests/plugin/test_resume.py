"""Episodes that begin within a past success: what the policy is shown, what is trained, where it did not work out."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from support.loop_harness import DONE, HIT, MISS, ROW, FakePool, ScriptedEngine, play, recipe
from support.queue_rows import advantages_of
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.utils import MetricsAggregator
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from arpo_verl.environments.fake import FakeScript
from arpo_verl.errors import DesktopError, ReplayError
from arpo_verl.plugin.resume import TRAINING_RESUME, read_prefix
from arpo_verl.plugin.rows import read_outcomes, read_trajectories
from arpo_verl.replay.choice import Start, form_groups
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.replay.trajectory import StoredRow, StoredTrajectory
from arpo_verl.types import Wait

pytestmark = pytest.mark.release

TEXTS = [f"Thought: {word}.\n{MISS}" for word in ("one", "two", "three", "four")] + [HIT, DONE]
LONG = {"max_steps": 8, "max_screenshots": None}
CONTEXTS = [
    # context, rows' first screenshots after four given steps
    ({"context": "full"}, [0]),
    ({"context": "window", "max_screenshots": 2}, [3, 4]),
    ({"context": "segments", "max_screenshots": 3, "kept_screenshots": 1}, [3]),
    ({"context": "segments", "max_screenshots": 3, "kept_screenshots": 2}, [2, 4]),
]


def settings(agent):
    return recipe({**LONG, **agent}, prompt_length=2048, response_length=4096)


def rows_of(output):
    return output if isinstance(output, list) else [output]


def success_of(output):
    rows = rows_of(output)
    seen, stored = 0, []
    for row in rows:
        first, seen = row.extra_fields.get("first_screenshot", 0), seen + len(row.screenshots)
        stored.append(
            StoredRow(row.prompt_ids, row.response_ids, row.response_mask, row.response_logprobs, range(first, seen))
        )
    return StoredTrajectory.of_rows(
        stored,
        task_id="click-it",
        step=1,
        success=1.0,
        reward=1.0,
        screenshots=[shot for row in rows for shot in row.screenshots],
        extra_fields=rows[-1].extra_fields,
    )


def resuming(trajectory, left, tolerance=4):
    """A row whose rollouts leave so much of the success to the policy, as the dataset would give it."""
    store = SuccessStore(8, 10**9)
    store.add(trajectory)
    TRAINING_RESUME.load_state_dict({"click-it": [9, left, 0]})
    TRAINING_RESUME.open(ReplayConfig(mode="resume", resume_tolerance=tolerance), store)
    row = TRAINING_RESUME.give({**ROW, "extra_info": dict(ROW["extra_info"])})
    assert isinstance(row["extra_info"]["resume"], str)
    return row


@pytest.fixture
def whole(policy, tokenizer):
    """By context, an episode of six steps."""
    return lambda agent: play(policy, ScriptedEngine(tokenizer, TEXTS), FakePool(), settings(agent))


@pytest.mark.parametrize(("agent", "firsts"), CONTEXTS)
def test_the_policy_sees_what_the_success_saw_and_is_trained_on_its_own_words(policy, tokenizer, whole, agent, firsts):
    source = rows_of(whole(agent))
    engine, pool = ScriptedEngine(tokenizer, TEXTS[4:]), FakePool()
    rows = rows_of(play(policy, engine, pool, settings(agent), resuming(success_of(source), 2)))
    # The same desktop after the same steps: the contexts are those that the success was written in.
    assert [len(call["images"]) for call in engine.calls] == seen_by(source)[4:]
    trained = [reply for row in rows for reply in replies_with_context(row)]
    assert trained == [reply for row in source for reply in replies_with_context(row)][4:]
    assert [ids for _, ids in trained] == [ids for ids, _ in engine.written]
    assert [context for context, _ in trained] == [call["prompt_ids"] for call in engine.calls]
    for row in rows:
        assert sum(row.response_mask) > 0 and row.reward_score == 1.0
        assert all(bit or value == 0.0 for bit, value in zip(row.response_mask, row.response_logprobs, strict=True))
        assert tuple(row.extra_fields["resume"]) == Start(4, 2)
        assert (row.extra_fields["num_steps"], row.extra_fields["stop_reason"]) == (6, "finished")
    # Screenshots that no row shows are in none; what is left is a trajectory like any other.
    shown = success_of(rows)
    assert [span.first_screenshot + firsts[0] for span in shown.rows] == firsts
    assert shown.screenshots == success_of(source).screenshots[firsts[0] :]
    assert len(pool.desktops) == 1 and len(pool.desktops[0].actions) == 6


@pytest.mark.parametrize(("agent", "firsts"), CONTEXTS)
def test_what_was_given_has_no_part_in_verls_loss(policy, tokenizer, whole, agent, firsts):
    """Neither in the policy's part nor in those of entropy and KL: their gradient is zero off the policy's tokens."""
    row = resuming(success_of(whole(agent)), 2)
    rows = rows_of(play(policy, ScriptedEngine(tokenizer, TEXTS[4:]), FakePool(), settings(agent), row))

    def jagged(columns, dtype=torch.float64):
        columns = [torch.as_tensor(column, dtype=dtype) for column in columns]
        return torch.nested.as_nested_tensor(columns, layout=torch.jagged)

    noise = torch.Generator().manual_seed(0)
    lengths = [len(row.response_ids) for row in rows]
    prompts, responses = ([getattr(row, name) for row in rows] for name in ("prompt_ids", "response_ids"))
    ids = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    log_probs, entropy = (
        torch.rand(sum(map(len, ids)), generator=noise, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    data = TensorDict(
        {
            "prompts": jagged(prompts, torch.long),
            "responses": jagged(responses, torch.long),
            "response_mask": jagged([row.response_mask for row in rows], torch.long),
            **{
                name: jagged([torch.rand(length, generator=noise, dtype=torch.float64) + 1 for length in lengths])
                for name in ("old_log_probs", "advantages", "ref_log_prob")
            },
        },
        batch_size=len(rows),
    )
    own = sum(sum(row.response_mask) for row in rows)
    for name, value in {"dp_size": 1, "batch_num_tokens": own, "global_batch_size": len(rows)}.items():
        data.set_non_tensor(name, value)
    options = {"entropy_coeff": 0.1, "use_kl_loss": True, "kl_loss_coef": 0.1, "clip_ratio": 10.0}
    config = ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)
    offsets = torch.tensor([0, *itertools.accumulate(map(len, ids))])
    outputs = {
        name: torch.nested.nested_tensor_from_jagged(values, offsets)
        for name, values in (("log_probs", log_probs), ("entropy", entropy))
    }
    loss, _ = ppo_loss(config, outputs, data)
    loss.backward()
    # The value at a position is the next token's.
    written = [bit for row in rows for bit in [*[0] * (len(row.prompt_ids) - 1), *row.response_mask, 0]]
    for values in (log_probs, entropy):
        assert (values.grad != 0).tolist() == [bool(bit) for bit in written]


def replies_with_context(row):
    ids = row.prompt_ids + row.response_ids
    reply, begin = [], 0
    for i, bit in enumerate([0] * len(row.prompt_ids) + row.response_mask + [0]):
        if bit and not reply:
            begin = i
        if bit:
            reply.append(ids[i])
        elif reply:
            yield ids[:begin], reply
            reply = []


def seen_by(rows):
    """How many screenshots each reply saw."""
    numbers = []
    for row in rows:
        shown, replies = len(row.multi_modal_data["images"]), sum(1 for _ in replies_with_context(row))
        numbers += range(shown - replies + 1, shown + 1)
    return numbers


def test_a_desktop_in_another_state_begins_at_the_beginning_and_says_so(policy, tokenizer, whole):
    # The recorded success clicked the square before it went on: here it did not move.
    source = success_of(play(policy, ScriptedEngine(tokenizer, [HIT, MISS, DONE]), FakePool(), settings({})))
    row = resuming(source, 1)
    pool = FakePool(FakeScript(success_clicks=1), FakeScript())
    assert tuple(play(policy, ScriptedEngine(tokenizer, [DONE]), pool, settings({}), row).extra_fields["resume"]) == (
        Start(2, 1)
    )
    changed = {**row, "extra_info": dict(row["extra_info"])}
    prefix = json.loads(changed["extra_info"]["resume"])
    prefix["replies"][0] = prefix["replies"][1]
    changed["extra_info"]["resume"] = json.dumps(prefix)
    pool = FakePool()
    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), pool, settings({}), changed)
    assert tuple(output.extra_fields["resume"]) == Start(0, 1, True)
    assert (output.extra_fields["num_steps"], output.reward_score, sum(output.response_mask[:1])) == (2, 1.0, 1)
    # It was looked for three times, then another desktop was taken; no fault of any desktop's.
    first, second = pool.desktops
    assert [type(action) for action in first.actions[2:]] == [Wait, Wait] and first.calls["evaluate"] == 0
    assert len(second.actions) == 2 and pool.faults == [] and pool.leased == 0


@pytest.mark.parametrize("script", [FakeScript(end={"step": [2]})])
def test_a_desktop_that_the_given_steps_end_scores_nothing(policy, tokenizer, whole, script):
    row = resuming(success_of(whole({})), 2)
    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), FakePool(script, FakeScript()), settings({}), row)
    assert tuple(output.extra_fields["resume"]) == Start(0, 2, True) and output.reward_score == 1.0
    # Ended by the policy's own first step it is the policy's doing.
    pool = FakePool(FakeScript(end={"step": [5]}))
    output = play(policy, ScriptedEngine(tokenizer, [HIT]), pool, settings({}), row)
    assert (output.extra_fields["stop_reason"], output.reward_score) == ("desktop_ended", 0.0)
    assert tuple(output.extra_fields["resume"]) == Start(4, 2)


def test_a_desktop_that_fails_in_the_given_steps_is_a_fault_like_any_other(policy, tokenizer, whole):
    row = resuming(success_of(whole({})), 2)
    pool = FakePool(FakeScript(fail={"step": [2]}), FakeScript())
    output = play(policy, ScriptedEngine(tokenizer, TEXTS[4:]), pool, settings({}), row)
    assert tuple(output.extra_fields["resume"]) == Start(4, 2) and pool.faults == ["DesktopLostError"]
    with pytest.raises(DesktopError):
        play(policy, ScriptedEngine(tokenizer, []), FakePool(FakeScript(fail={"step": [-1]})), settings({}), row)


def test_given_steps_that_leave_no_room_begin_at_the_beginning(policy, tokenizer, whole):
    row = resuming(success_of(whole({})), 2)
    config = recipe(LONG, prompt_length=512, response_length=512)
    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), FakePool(), config, row)
    assert tuple(output.extra_fields["resume"]) == Start(0, 2, True) and output.reward_score == 1.0
    config = recipe({**LONG, "max_steps": 4}, prompt_length=2048, response_length=4096)
    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), FakePool(), config, row)
    assert tuple(output.extra_fields["resume"]) == Start(0, 2, True)


def test_an_episode_is_recorded_with_what_was_given(policy, tokenizer, whole, tmp_path):
    row = resuming(success_of(whole({})), 2)
    config = settings({"trajectory_dir": str(tmp_path)})
    output = play(policy, ScriptedEngine(tokenizer, TEXTS[4:]), FakePool(), config, row)
    (path,) = tmp_path.rglob("episode.json")
    record = json.loads(path.read_text())
    assert (record["given_steps"], record["num_steps"], len(record["turns"])) == (4, 6, 6)
    assert [turn["text"] for turn in record["turns"]][:4] == TEXTS[:4]
    assert [row["reply_tokens"] for row in record["rows"]] == [sum(output.response_mask)]
    assert len(list(path.parent.glob("*.png"))) == 6


def test_rows_without_a_prefix_are_as_they_were(policy, tokenizer):
    TRAINING_RESUME.open(ReplayConfig(mode="resume"), SuccessStore(8, 10**9))
    row = TRAINING_RESUME.give({**ROW, "extra_info": dict(ROW["extra_info"])})
    assert row["extra_info"]["resume"] == "" and read_prefix(row) is None
    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), FakePool(), settings({}), row)
    assert "resume" not in output.extra_fields
    TRAINING_RESUME.open(ReplayConfig(), SuccessStore(8, 10**9))
    assert TRAINING_RESUME.give({"extra_info": {}}) == {"extra_info": {}}
    with pytest.raises(ReplayError, match="extra_info.resume"):
        read_prefix({"extra_info": {"resume": "{"}})


def test_a_resumed_group_is_compared_with_itself_alone(empty_queue, rollouts, compose, model_path):
    def rollout(success, seed, start=None):
        output = rollouts.output("a", success, seed)
        output.extra_fields |= {} if start is None else {"resume": tuple(start)}
        return output

    config = compose("+replay.mode=resume", "+replay.resume_after=0", f"actor_rollout_ref.model.path={model_path}")
    trainer = SimpleNamespace(config=config, trainer_mode="sync", _add_prompts_to_generate=lambda n: n)
    sampler = PPOTrainer._build_replay_buffer(trainer)
    missed = Start(0, 2, True)
    starts = [Start(1, 2), Start(1, 2), missed, missed]
    rollouts.put("u", [rollout(s, i, start) for i, (s, start) in enumerate(zip([1, 0, 0, 1], starts, strict=True))])
    rollouts.put("v", [rollout(s, 10 + i) for i, s in enumerate([1, 0, 0, 0])])
    batch, metrics = sampler.sample(global_steps=1, partition_id="train", batch_size=2)
    advantages = advantages_of(empty_queue, batch, config)
    assert [round(advantages[f"u_{i}_0"]) for i in range(4)] == [1, -1, -1, 1]
    assert [round(advantages[f"v_{i}_0"], 2) for i in range(4)] == [1.73, -0.58, -0.58, -0.58]
    assert (metrics["curriculum/rollouts"], metrics["curriculum/missed"], metrics["replay/injected"]) == (2, 2, 0)
    kinds = {name: MetricsAggregator()._get_aggregation_type(name) for name in metrics}
    means = {name for name in kinds if name.endswith(("_mean", "_share")) or name.startswith("rollout/stop/")}
    assert {"curriculum/success_mean"} < means and {kinds[name] for name in means} == {"weighted_avg"}
    # Of the three successes that of the resumed rollout is not kept.
    assert metrics["replay/stored"] == 2
    assert metrics["rollout/success_mean"] == pytest.approx(2 / 6)


def test_the_filter_takes_rollouts_for_alike_that_differ_from_those_of_another_start_alone(
    empty_queue, rollouts, compose, model_path
):
    def put(uid, successes, seed):
        outputs = [rollouts.output("a", success, seed + i) for i, success in enumerate(successes)]
        for output, start in zip(
            outputs, [Start(1, 2), Start(1, 2), Start(0, 2, True), Start(0, 2, True)], strict=True
        ):
            output.extra_fields["resume"] = tuple(start)
        rollouts.put(uid, outputs)

    options = ["algorithm.filter_groups.enable=true", "+replay.mode=resume", "+replay.resume_after=0"]
    config = compose(*options, f"actor_rollout_ref.model.path={model_path}")
    trainer = SimpleNamespace(config=config, trainer_mode="sync", _add_prompts_to_generate=lambda n: n)
    sampler = PPOTrainer._build_replay_buffer(trainer)
    sampler.refill_fn = lambda number: put("w", [1, 0, 0, 0], 20)
    put("u", [1, 1, 0, 0], 0)
    put("v", [1, 0, 0, 0], 10)
    batch, metrics = sampler.sample(global_steps=1, partition_id="train", batch_size=2)
    assert {key.split("_")[0] for key in batch.keys} == {"v", "w"}
    assert metrics["training/filter_groups/evicted_samples"] == 1


def test_outcomes_say_where_they_began(empty_queue, rollouts):
    output = rollouts.output("a", 1.0, 1)
    output.extra_fields["resume"] = (3, 2, False)
    rollouts.put("u", [output, rollouts.output("a", 0.0, 2)])
    outcomes = read_outcomes(["u_0_0", "u_1_0"], "train")
    assert [outcome.start for outcome in outcomes] == [Start(3, 2), Start()]
    assert len(form_groups(outcomes)) == 2
    trajectories = read_trajectories(outcomes, "train", 1)
    assert not any("resume" in trajectory.extra_fields for trajectory in trajectories)


@pytest.mark.parametrize(("step", "begins_within"), [(3, True), (4, False)])
def test_a_resumed_run_begins_within_no_success_that_is_too_old(
    compose, model_path, tmp_path, whole, step, begins_within
):
    """Its first batch was drawn as if the run had just begun, when nothing is too old."""
    config = compose(
        *("+replay.mode=resume", "+replay.resume_after=0", "+replay.max_age_steps=3"),
        f"actor_rollout_ref.model.path={model_path}",
        f"+trainer.v1.sampler.sampler_kwargs.resume={{default_local_dir: {tmp_path}}}",
    )
    trainer = SimpleNamespace(config=config, trainer_mode="sync", _add_prompts_to_generate=lambda n: n)
    replayer = PPOTrainer._build_replay_buffer(trainer).replayer
    replayer.store.add(success_of(whole({})))  # of step 1
    replayer.save(tmp_path / f"global_step_{step}" / "replay")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(str(step))
    assert len(PPOTrainer._build_replay_buffer(trainer).replayer.store) == 1
    row = TRAINING_RESUME.give({**ROW, "extra_info": dict(ROW["extra_info"])})
    assert bool(row["extra_info"]["resume"]) == begins_within
