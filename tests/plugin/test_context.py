"""What the model sees of a long episode, and what it is trained on: one row of tokens or several."""

import itertools

import pytest
from support.loop_harness import DONE, HIT, MISS, ROW, FakePool, ScriptedEngine, play, recipe

from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.models.messages import reply_message, screenshot_message
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.errors import ConfigError, GenerationError

REPLIES = [f"Thought: {word}.\n{MISS}" for word in ("one", "two", "three", "four", "five")] + [DONE]
LONG = {"max_steps": 8, "max_screenshots": None}


def rows_of(policy, tokenizer, agent, replies=REPLIES, **lengths):
    engine = ScriptedEngine(tokenizer, replies)
    lengths = {"prompt_length": 2048, "response_length": 4096, **lengths}
    output = play(policy, engine, FakePool(), recipe({**LONG, **agent}, **lengths))
    return engine, output if isinstance(output, list) else [output]


def screenshots_of(rows):
    """Of the whole episode: each row has those that no row before shows."""
    return [shot for row in rows for shot in row.screenshots]


def rendered(policy, replies, first, shots):
    """What the processor itself makes of the conversation before a reply: of the earlier replies only the text."""
    instruction = ROW["extra_info"]["instruction"]
    messages = load_family("small").opening(instruction, "English", replies[:first])
    for reply in replies[first:]:
        messages += [reply_message(reply), screenshot_message()]
    _, processor = policy
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    images = [decode_screenshot(shot) for shot in shots[first : len(replies) + 1]]
    return processor(text=[text], images=images, return_tensors="pt")["input_ids"][0].tolist()


def firsts_of(rows):
    return [row.extra_fields.get("first_screenshot", 0) for row in rows]


CONTEXTS = [
    # context, rows' first screenshots, first screenshot that each reply saw
    ({"context": "window", "max_screenshots": 2}, [0, 1, 2, 3, 4], [0, 0, 1, 2, 3, 4]),
    ({"context": "window", "max_screenshots": 4}, [0, 1, 2], [0, 0, 0, 0, 1, 2]),
    ({"context": "window", "max_screenshots": 1}, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]),
    ({"context": "segments", "max_screenshots": 3, "kept_screenshots": 1}, [0, 3], [0, 0, 0, 3, 3, 3]),
    ({"context": "segments", "max_screenshots": 3, "kept_screenshots": 2}, [0, 2, 4], [0, 0, 0, 2, 2, 4]),
    ({"context": "segments", "max_screenshots": 4}, [0, 3], [0, 0, 0, 0, 3, 3]),
]


@pytest.mark.parametrize(("agent", "firsts", "seen"), CONTEXTS)
def test_each_reply_is_trained_once_in_exactly_the_context_that_it_was_written_in(
    policy, tokenizer, agent, firsts, seen
):
    engine, rows = rows_of(policy, tokenizer, agent)
    shots = screenshots_of(rows)
    assert len(shots) == len(REPLIES) and firsts_of(rows) == firsts
    assert GuiAgentConfig(max_steps=len(REPLIES), **agent).max_rows == len(rows)
    trained = []
    for row in rows:
        sequence = row.prompt_ids + row.response_ids
        is_reply = [0] * len(row.prompt_ids) + row.response_mask
        for bit, run in itertools.groupby(range(len(sequence)), key=is_reply.__getitem__):
            run = list(run)
            if bit:
                log_probs = [row.response_logprobs[i - len(row.prompt_ids)] for i in run]
                trained.append((sequence[: run[0]], [sequence[i] for i in run], log_probs))
    # One stretch of ones a reply: behind the very tokens that the engine was given, and with its log-probs.
    assert [context for context, _, _ in trained] == [call["prompt_ids"] for call in engine.calls]
    assert [(ids, log_probs) for _, ids, log_probs in trained] == engine.written
    for number, (call, first) in enumerate(zip(engine.calls, seen, strict=True)):
        assert call["prompt_ids"] == rendered(policy, REPLIES[:number], first, shots)
        assert len(call["images"]) == number + 1 - first
    for row in rows:
        images = row.multi_modal_data["images"]
        assert [image.tobytes() for image in images] == [
            decode_screenshot(shot).tobytes()
            for shot in shots[row.extra_fields.get("first_screenshot", 0) :][: len(images)]
        ]
        assert row.reward_score == rows[-1].reward_score and row.num_turns == 2 * len(REPLIES)
        assert row.extra_fields["num_turns"] == len(REPLIES)


@pytest.mark.parametrize("agent", [{"context": "window"}, {"context": "segments"}, {"context": "full"}])
def test_an_episode_that_fits_one_row_is_the_same_to_the_bit_in_every_context(policy, tokenizer, agent):
    replies = [MISS, HIT, MISS, DONE]
    _, (full,) = rows_of(policy, tokenizer, {}, replies)
    _, (row,) = rows_of(policy, tokenizer, {**agent, "max_screenshots": 4}, replies)
    for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "extra_fields", "screenshots"):
        assert getattr(row, name) == getattr(full, name), name


def test_a_segment_ends_where_its_tokens_do(policy, tokenizer):
    """A screenshot is 117 tokens, a turn's words and a reply some 40: two turns fit into 400 behind the prompt."""
    agent = {"context": "segments", "max_screenshots": 6, "kept_screenshots": 1}
    engine, rows = rows_of(policy, tokenizer, agent, prompt_length=512, response_length=400)
    assert len(rows) > 1 and all(len(row.response_ids) <= 400 for row in rows)
    assert [len(call["images"]) for call in engine.calls] != list(range(1, 7))
    assert rows[-1].extra_fields["stop_reason"] == "finished"


@pytest.mark.parametrize("context", ["full", "window"])
def test_no_row_is_longer_than_the_engine_takes(policy, tokenizer, context):
    """Its server would cut the reply short, and nobody would know."""
    lengths = {"prompt_length": 512, "response_length": 1536, "max_model_len": 700}
    engine, rows = rows_of(policy, tokenizer, {"context": context, "max_screenshots": 5}, **lengths)
    assert all(len(call["prompt_ids"]) + 64 <= 700 for call in engine.calls)
    assert max(len(call["prompt_ids"]) for call in engine.calls) > 500
    assert rows[-1].extra_fields["stop_reason"] == ("token_limit" if context == "full" else "finished")


def test_a_row_without_room_shows_fewer_screenshots_and_an_episode_ends_where_the_newest_has_none(policy, tokenizer):
    """Earlier replies are never left out, so that they fill a row at last."""
    agent = {"context": "window", "max_screenshots": 3, "max_steps": 40}
    replies = [f"Thought: step {n}.\n{MISS}" for n in range(40)]
    engine, rows = rows_of(policy, tokenizer, agent, replies, prompt_length=300, response_length=500)
    assert rows[-1].extra_fields["stop_reason"] == "token_limit" and len(engine.calls) < 40
    assert all(len(row.prompt_ids) + len(row.response_ids) <= 800 for row in rows)
    counts = [len(call["images"]) for call in engine.calls]
    assert counts[:3] == [1, 2, 3] and counts[2:] == sorted(counts[2:], reverse=True) and set(counts) == {1, 2, 3}
    shots = screenshots_of(rows)
    for number, (call, shown) in enumerate(zip(engine.calls, counts, strict=True)):
        assert call["prompt_ids"] == rendered(policy, replies[:number], number + 1 - shown, shots)


def test_log_probs_of_some_rows_only_are_refused(policy, tokenizer):
    class Forgetful(ScriptedEngine):
        async def generate(self, *args, **kwargs):
            self.log_probs = len(self.calls) < 2
            return await super().generate(*args, **kwargs)

    config = recipe({**LONG, "context": "window", "max_screenshots": 2}, prompt_length=2048, response_length=4096)
    with pytest.raises(GenerationError, match="log-probs of every row's replies, or of none"):
        play(policy, Forgetful(tokenizer, REPLIES), FakePool(), config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"context": "windows"}, "gui_agent.context must be one of full, window, segments, got 'windows'"),
        ({"context": "window", "kept_screenshots": 2}, "null but with context=segments"),
        ({"context": "segments", "max_screenshots": 4, "kept_screenshots": 4}, "less than gui_agent.max_screenshots"),
        ({"max_steps": 3, "max_screenshots": 4}, "gui_agent.context to window or segments for longer episodes"),
    ],
)
def test_a_context_that_cannot_be_is_refused(values, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        GuiAgentConfig(**values)
