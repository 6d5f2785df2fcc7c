"""The proof of the whole: our own loop, run through the endpoint, is trained to the bit as without it."""

import pytest
from support.loop_harness import DONE, HIT, MISS, FakePool, ScriptedEngine, play, recipe

REPLIES = [f"Thought: {word}.\n{MISS}" for word in ("one", "two", "two", "four")] + [HIT, DONE]
LENGTHS = {"prompt_length": 2048, "response_length": 4096}


@pytest.mark.parametrize(
    ("context", "harness"),
    [
        ({"context": "full"}, "own_loop"),
        ({"context": "window", "max_screenshots": 2}, "window_of_two"),
        ({"context": "segments", "max_screenshots": 3, "kept_screenshots": 2}, "segments_of_three"),
    ],
)
def test_our_loop_through_the_endpoint_is_the_same_to_the_bit(policy, tokenizer, context, harness):
    outputs = []
    for agent in (context, {"harness": f"support.harness_agents:{harness}"}):
        engine, pool = ScriptedEngine(tokenizer, REPLIES), FakePool()
        output = play(policy, engine, pool, recipe({"max_steps": 8, "max_screenshots": None, **agent}, **LENGTHS))
        rows = output if isinstance(output, list) else [output]
        outputs.append((engine.calls, rows, pool.desktops[0].actions))
    (calls, rows, actions), (own_calls, own_rows, own_actions) = outputs
    assert own_actions == actions and len(own_rows) == len(rows)
    for own, call in zip(own_calls, calls, strict=True):
        assert own["prompt_ids"] == call["prompt_ids"]
        assert [image.tobytes() for image in own["images"]] == [image.tobytes() for image in call["images"]]
        # The recipe's sampling, whatever the client asks for.
        assert (own["temperature"], own["max_tokens"]) == (call["temperature"], call["max_tokens"]) == (1.0, 64)
    assert len({call["request_id"] for call in own_calls}) == 1  # one replica an episode
    for own, row in zip(own_rows, rows, strict=True):
        for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "screenshots", "reward_score"):
            assert getattr(own, name) == getattr(row, name), name
        assert own.num_turns == row.num_turns and own.extra_fields == row.extra_fields
