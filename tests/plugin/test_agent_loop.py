"""The agent loop from the row to veRL's output: tokens, mask, log-probs, limits, faults."""

import asyncio

import pytest
import torch
from support.loop_harness import DONE, HIT, MISS, ROW, FakePool, ScriptedEngine, make_loop, play, recipe
from support.made_pixels import made
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

from arpo_verl.desktops.fake import FakeScript
from arpo_verl.errors import ConfigError, DesktopError, DesktopLostError, GenerationError, TaskError
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.types import Click, Finish, Point

# A 640x480 screenshot becomes 364x252 for the model: 13 x 9 tokens.
SCREENSHOT_TOKENS = 117


def conversation(policy, replies, screenshots):
    """The whole conversation as the processor itself renders and tokenizes it, images and all."""
    from arpo_verl.agent.models.family import load_family
    from arpo_verl.agent.models.messages import reply_message, screenshot_message
    from arpo_verl.agent.rollout.vision import decode_screenshot

    messages = load_family("small").opening(ROW["extra_info"]["instruction"], "English", ())
    for reply in replies:
        messages += [reply_message(reply), screenshot_message()]
    messages.pop()
    _, processor = policy
    text = processor.apply_chat_template(messages, tokenize=False)
    images = [decode_screenshot(screenshot) for screenshot in screenshots]
    return processor(text=[text], images=images, return_tensors="pt")


def test_the_sequence_is_what_the_processor_makes_of_the_whole_conversation(policy, tokenizer):
    engine = ScriptedEngine(tokenizer, [MISS, HIT, DONE])
    output = play(policy, engine)
    expected = conversation(policy, [MISS, HIT, DONE], output.screenshots)
    # The template closes the last turn with a newline after <|im_end|>, which nobody generated.
    assert output.prompt_ids + output.response_ids == expected["input_ids"][0].tolist()[:-1]
    image_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert output.prompt_ids.count(image_id) == SCREENSHOT_TOKENS
    assert (output.prompt_ids + output.response_ids).count(image_id) == int(
        expected["image_grid_thw"].prod(-1).sum()
    ) // 4


def test_the_mask_is_one_exactly_on_what_the_engine_wrote(policy, tokenizer):
    engine = ScriptedEngine(tokenizer, [MISS, HIT, DONE])
    output = play(policy, engine)
    written = [token for token_ids, _ in engine.written for token in token_ids]
    log_probs = [value for _, values in engine.written for value in values]
    masked = [i for i, bit in enumerate(output.response_mask) if bit]
    assert [output.response_ids[i] for i in masked] == written
    assert [output.response_logprobs[i] for i in masked] == log_probs
    assert all(output.response_logprobs[i] == 0.0 for i, bit in enumerate(output.response_mask) if not bit)
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
    # Runs of the mask are the three replies, each with its end token; the response ends with the last.
    texts, run = [], []
    for token, bit in zip(output.response_ids + [0], output.response_mask + [0], strict=True):
        if bit:
            run.append(token)
        elif run:
            texts.append(tokenizer.decode(run))
            run = []
    assert texts == [f"{reply}<|im_end|>" for reply in (MISS, HIT, DONE)]
    assert set(output.response_mask) == {0, 1} and output.response_mask[0] == output.response_mask[-1] == 1


def test_each_turn_gets_the_prefix_of_the_sequence_and_all_screenshots_so_far(policy, tokenizer):
    engine = ScriptedEngine(tokenizer, [MISS, HIT, DONE])
    output = play(policy, engine)
    sequence = output.prompt_ids + output.response_ids
    assert [len(call["images"]) for call in engine.calls] == [1, 2, 3]
    for call in engine.calls:
        assert sequence[: len(call["prompt_ids"])] == call["prompt_ids"]
        assert call["max_tokens"] == 64 and call["temperature"] == 1.0 and call["logprobs"] is True
    assert len({call["request_id"] for call in engine.calls}) == 1
    # The engine sees the same image objects that training will process.
    assert all(a is b for a, b in zip(engine.calls[-1]["images"], output.multi_modal_data["images"], strict=True))


def test_a_hit_square_is_rewarded_and_the_fields_of_the_contract_are_there(policy, tokenizer):
    pool = FakePool()
    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), pool)
    assert output.reward_score == 1.0
    fields = output.extra_fields
    nothing = {"format_error": 0.0, "desktop_ended": 0.0, "unclear_losses": 0.0}
    assert fields["reward_extra_info"] == {"success": 1.0, **nothing}
    assert {name: fields[name] for name in ("task_id", "success", "format_error", "stop_reason", "num_turns")} == {
        "task_id": "click-it",
        "success": 1.0,
        "format_error": 0.0,
        "stop_reason": "finished",
        "num_turns": 2,
    }
    assert type(fields["stop_reason"]) is str and "screenshots" not in fields
    assert [shot[:4] for shot in output.as_dict()["screenshots"]] == [b"\x89PNG"] * 2
    assert output.num_turns == 4
    # As veRL's own loops: the first turn's policy version and the last one's, and all turns' drafts.
    assert [fields[name] for name in ("min_global_steps", "max_global_steps", "spec_num_draft_tokens")] == [1, 2, 6]
    # (20, 20) of 364x252 is (35.2, 38.1) of 640x480.
    assert pool.desktops[0].actions == [Click(Point(35, 38)), Finish()]
    assert output.metrics.generate_sequences > 0 and output.metrics.tool_calls > 0


def test_the_output_goes_through_verls_own_postprocessing(policy, tokenizer):
    output = play(policy, ScriptedEngine(tokenizer, [MISS, HIT, DONE]))
    worker = AgentLoopWorker.__new__(AgentLoopWorker)
    worker.tokenizer, worker.processor = policy
    worker.mm_processor_kwargs = {}
    row = output.as_dict()
    assert row["rm_scores"].tolist() == [0.0] * (len(output.response_ids) - 1) + [1.0]
    assert row["rollout_log_probs"].shape == row["response_mask"].shape
    input_ids = torch.cat([row["prompts"], row["responses"]])
    inputs = worker._compute_multi_modal_inputs(output, input_ids)
    assert inputs["image_grid_thw"].tolist() == [[1, 18, 26]] * 3
    positions = worker._compute_position_ids(input_ids[None], torch.ones_like(input_ids)[None], inputs)
    assert positions.shape == (1, 4, len(input_ids))


@pytest.mark.parametrize(
    ("replies", "stop_reason", "reward", "steps"),
    [
        ([HIT, DONE], "finished", 1.0, 2),
        ([MISS, DONE], "finished", 0.0, 2),
        ([HIT, "Action: call_user()"], "failed", 0.0, 2),
        (["I would rather not."], "parse_error", -1.0, 1),
        ([HIT, "Action: click(start_box='(900,1)')"], "parse_error", 0.0, 2),
        ([MISS] * 4, "step_limit", 0.0, 4),
        ([HIT, MISS, MISS, MISS], "step_limit", 1.0, 4),
        ([HIT + "\n\nfinished()"], "finished", 1.0, 1),
    ],
)
def test_every_end_is_typed_and_judged_by_the_state(policy, tokenizer, replies, stop_reason, reward, steps):
    pool = FakePool()
    output = play(policy, ScriptedEngine(tokenizer, replies), pool)
    assert output.extra_fields["stop_reason"] == stop_reason
    assert output.reward_score == reward
    assert output.extra_fields["num_turns"] == steps
    # The model saw one screenshot for each reply; what came after the last one is not in the sequence.
    assert len(output.screenshots) == steps
    assert output.response_mask[-1] == 1
    assert pool.desktops[0].calls["evaluate"] == 1 and pool.leased == 0


def test_actions_after_the_one_that_ends_the_episode_are_not_done(policy, tokenizer):
    pool = FakePool()
    play(policy, ScriptedEngine(tokenizer, [f"{DONE}\n\nclick(point='(20,20)')"]), pool)
    assert pool.desktops[0].actions == [Finish()]


@pytest.mark.parametrize(("missing", "screenshots", "reason"), [(0, 3, "step_limit"), (1, 2, "token_limit")])
def test_a_screenshot_that_does_not_fit_with_a_whole_reply_is_not_begun(
    policy, tokenizer, missing, screenshots, reason
):
    agent = {"max_steps": 3, "max_screenshots": 3}
    free = play(policy, ScriptedEngine(tokenizer, [MISS] * 3), config=recipe(agent))
    # Where the third reply begins: with 64 tokens for it the third screenshot just fits, with one less it does not.
    third_reply = len(free.response_ids) - free.response_mask[::-1].index(0)
    config = recipe(agent, response_length=third_reply + 64 - missing)
    output = play(policy, ScriptedEngine(tokenizer, [MISS] * 3), config=config)
    assert output.extra_fields["stop_reason"] == reason
    assert len(output.screenshots) == len(output.multi_modal_data["images"]) == screenshots
    image_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert (output.prompt_ids + output.response_ids).count(image_id) == SCREENSHOT_TOKENS * screenshots
    assert output.response_mask[-1] == 1
    # The state is judged all the same.
    assert output.reward_score == 0.0


def test_a_reply_that_does_not_end_is_malformed_and_says_why(policy, tokenizer):
    output = play(policy, ScriptedEngine(tokenizer, ["Thought: " + "so " * 200]))
    assert output.extra_fields["stop_reason"] == "parse_error"
    assert len(output.response_ids) == 64 and output.response_mask == [1] * 64
    assert (output.reward_score, output.extra_fields["format_error"]) == (-1.0, 1.0)


def test_a_turn_is_closed_where_the_engine_leaves_the_end_token_out(policy, tokenizer):
    with_end = play(policy, ScriptedEngine(tokenizer, [MISS, DONE]))
    without = play(policy, ScriptedEngine(tokenizer, [MISS, DONE], end=False))
    assert without.response_ids == with_end.response_ids[:-1]
    # The added end token is context: it was not generated.
    assert sum(with_end.response_mask) - sum(without.response_mask) == 2


def test_an_engine_without_log_probs_gives_none(policy, tokenizer):
    assert play(policy, ScriptedEngine(tokenizer, [MISS, DONE], log_probs=False)).response_logprobs is None


@pytest.mark.parametrize("kind", ["reset", "step", "evaluate"])
def test_a_fault_starts_the_episode_anew_on_a_fresh_desktop(policy, tokenizer, kind):
    pool = FakePool(FakeScript(fail={kind: [1]}), FakeScript())
    replies = [HIT, DONE] if kind == "evaluate" else ([HIT] if kind == "step" else [])
    engine = ScriptedEngine(tokenizer, [*replies, HIT, DONE])
    output = play(policy, engine, pool)
    assert output.reward_score == 1.0
    assert len(pool.desktops) == 2 and len(pool.faults) == 1 and pool.leased == 0
    # Nothing of the failed attempt is left in the trajectory.
    assert sum(output.response_mask) == sum(len(ids) for ids, _ in engine.written[-2:])
    assert len({call["request_id"] for call in engine.calls}) == (1 if kind == "reset" else 2)


def test_after_the_last_attempt_nothing_is_scored(policy, tokenizer):
    pool = FakePool(FakeScript(fail={"step": [1]}))
    with pytest.raises(DesktopLostError, match="scripted failure"):
        play(policy, ScriptedEngine(tokenizer, [HIT] * 3), pool)
    assert len(pool.desktops) == 3 and pool.leased == 0


def test_a_screenshot_that_is_no_image_is_a_fault_of_the_desktop(policy, tokenizer, monkeypatch):
    from arpo_verl.desktops.fake import FakeEnvironment
    from arpo_verl.types import Observation

    monkeypatch.setattr(FakeEnvironment, "look", lambda self: Observation(b"<html>"))
    with pytest.raises(DesktopError, match="PNG or JPEG"):
        play(policy, ScriptedEngine(tokenizer, []))


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"replies": [""], "end": False}, "must give a reply, got 0 tokens"),
        ({"replies": [HIT], "outputs": {"stop_reason": "aborted"}}, "stop reason 'aborted'"),
        ({"replies": ["<|image_pad|>"]}, r"not contain <\|image_pad\|>"),
        ({"replies": ["<|video_pad|>"]}, r"or <\|video_pad\|>"),
        ({"replies": [HIT], "outputs": {"log_probs": [-0.1]}}, "one log-prob for each"),
    ],
)
def test_an_unusable_reply_drops_the_session_without_a_retry_or_a_score(policy, tokenizer, engine, reason):
    pool = FakePool()
    outputs = engine.pop("outputs", {})
    scripted = ScriptedEngine(tokenizer, **engine, log_probs=False, outputs=outputs)
    with pytest.raises(GenerationError, match=reason):
        play(policy, scripted, pool)
    assert len(pool.desktops) == 1 and pool.faults == [] and pool.leased == 0


MARKS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_of_an_image_in_a_reply_is_a_token_as_any_other(policy, tokenizer, mark):
    # At temperature 1 a policy writes one sooner or later, and no engine of veRL's bans it: the session was dropped.
    written = [f"{mark}{MISS}", f"{MISS}{mark}", f"{DONE}{mark}"]
    output = play(policy, ScriptedEngine(tokenizer, written, end=False))
    assert output.extra_fields["stop_reason"] == "finished" and len(output.screenshots) == 3
    assert output.response_ids[-1] == tokenizer.convert_tokens_to_ids(mark) and output.response_mask[-1] == 1
    ordinary = output.model_copy()
    place = {tokenizer.convert_tokens_to_ids(mark): tokenizer.convert_tokens_to_ids("a")}
    masked = zip(ordinary.response_ids, ordinary.response_mask, strict=True)
    ordinary.response_ids = [place.get(token, token) if bit else token for token, bit in masked]
    assert sum(map(int.__ne__, output.response_ids, ordinary.response_ids)) == 3
    inputs, expected = (
        ModelInputs(*policy).compute(each.screenshots, torch.tensor(each.prompt_ids + each.response_ids))
        for each in (output, ordinary)
    )
    assert torch.equal(inputs[1], expected[1]), "positions"
    given, usual = made(inputs[0]), made(expected[0])
    assert given.keys() == usual.keys() and all(torch.equal(given[name], usual[name]) for name in usual)


def test_a_deterministic_run_knows_its_sessions_by_what_they_are(policy, tokenizer):
    # The V1 trainer numbers no sessions by `priority`: all were `det-0`, so all went to one server.
    config = recipe()
    config.actor_rollout_ref.rollout.full_determinism = True

    def calls(**row):
        engine = ScriptedEngine(tokenizer, [MISS, DONE])
        play(policy, engine, config=config, row={**ROW, **row})
        return [(call["request_id"], call.get("seed")) for call in engine.calls]

    other_task = {**ROW["extra_info"], "index": 1}
    rows = [{}, {"session_id": 3}, {"global_steps": 13}, {"extra_info": other_task}, {"priority": 7}]
    made = [calls(**row) for row in rows]
    names = [{name for name, _ in each} for each in made]
    assert all(len(ids) == 1 for ids in names) and len(set().union(*names)) == len(rows)
    assert names[0] == {"det-12-0-2"} and names[-1] == {"det-7"}
    # veRL's vLLM server gives a request without a seed the engine's: all rollouts of a group wrote the same replies.
    assert len({seed for each in made for _, seed in each if type(seed) is int}) == 2 * len(rows)
    assert calls() == made[0]
    config.actor_rollout_ref.rollout.seed = 43
    assert {seed for _, seed in calls()}.isdisjoint(seed for _, seed in made[0])
    config.actor_rollout_ref.rollout.name = "sglang"
    assert [seed for _, seed in calls()] == [None, None]
    config.actor_rollout_ref.rollout.full_determinism = False
    config.actor_rollout_ref.rollout.name = "vllm"
    assert [seed for _, seed in calls()] == [None, None]


def test_a_cancelled_episode_gives_its_desktop_back(policy, tokenizer):
    pool = FakePool()

    async def run():
        entered = asyncio.Event()

        class Stuck(ScriptedEngine):
            async def generate(self, *args, **kwargs):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(make_loop(policy, Stuck(tokenizer, []), pool).run({}, **ROW))
        await entered.wait()
        assert pool.leased == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert pool.leased == 0


def test_the_desktop_is_given_back_before_the_reward_function_runs(policy, tokenizer, tmp_path):
    pool = FakePool()
    module = tmp_path / "slow_reward.py"
    module.write_text(
        "async def score(data_source, solution_str, ground_truth, extra_info, bonus):\n"
        "    return {'score': bonus, 'seen': extra_info['stop_reason'], 'text': solution_str}\n"
    )
    reward = {"path": str(module), "name": "score", "reward_kwargs": {"bonus": 7}}
    output = play(policy, ScriptedEngine(tokenizer, [DONE]), pool, recipe(reward=reward))
    assert output.reward_score == 7.0
    info = output.extra_fields["reward_extra_info"]
    assert info["seen"] == "finished" and info["success"] == 0.0 and "Action: finished()" in info["text"]


@pytest.mark.parametrize(
    ("given", "error", "reason"),
    [
        ({"config": recipe(prompt_length=100)}, ConfigError, "prompt_length must hold the prompt of task click-it"),
        ({"config": recipe(response_length=150)}, ConfigError, "response_length must be at least 181"),
        ({"row": {**ROW, "extra_info": {"index": 3}}}, TaskError, "task_id, instruction and spec"),
    ],
)
def test_what_no_episode_can_be_played_with_ends_the_run(policy, tokenizer, given, error, reason):
    pool = FakePool()
    with pytest.raises(error, match=reason) as told:
        play(policy, ScriptedEngine(tokenizer, []), pool, **given)
    assert pool.refused == [str(told.value)]


def test_a_smaller_image_by_the_recipe_changes_the_tokens_and_the_coordinates_alike(policy, tokenizer):
    # 640x480 within 40 x 784 pixels: 196x140, so 7 x 5 = 35 tokens; the square's (10, 10) is (32.7, 34.3).
    config = recipe(data={"mm_processor_kwargs": {"min_pixels": 3136, "max_pixels": 31360}})
    pool = FakePool()
    output = play(policy, ScriptedEngine(tokenizer, ["Action: click(point='(10,10)')", DONE]), pool, config)
    assert output.prompt_ids.count(tokenizer.convert_tokens_to_ids("<|image_pad|>")) == 35
    assert pool.desktops[0].actions[0] == Click(Point(33, 34))
    assert output.mm_processor_kwargs == {"min_pixels": 3136, "max_pixels": 31360}
