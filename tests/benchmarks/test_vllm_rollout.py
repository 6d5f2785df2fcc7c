"""`benchmarks/vllm_rollout.py` counts by turn what was asked of the engine, and scales the recipe's image cache."""

import pytest
import vllm_rollout as benchmark

pytestmark = pytest.mark.study


def calls_of(sessions, turns, begin):
    """Prompts of 100 tokens and 150 more a turn, all but the last 60 of them cached, one image new at each turn."""
    for turn in range(turns):
        for session in range(sessions):
            at = begin + 10 * turn + session
            yield {"at": at, "images": turn + 1, "processed": 1}
            tokens = {"prompt_tokens": 100 + 150 * turn, "cached_tokens": 40 + 150 * turn, "tokens": 9}
            yield {"begin": at - 0.5, "at": at + 0.5, "session": f"kept-going-{session}", "turn": turn, **tokens}


def test_means_are_by_turn_and_of_the_long_episodes_alone():
    warm_up = [{"at": 0.0, "images": 15, "processed": 15}]
    trained = [{"at": 900.0, "images": 1, "processed": 1}]
    trained += [
        {"begin": 900.0, "at": 901.0, "session": "x", "turn": 0, "prompt_tokens": 1, "cached_tokens": 0, "tokens": 9}
    ]
    figures = benchmark.by_turn([*warm_up, *calls_of(2, 15, 500.0), *trained])
    assert figures["episodes"] == 2
    assert figures["prompt_tokens_by_turn"] == [100 + 150 * turn for turn in range(15)]
    assert figures["prefilled_tokens_by_turn"] == [60] * 15
    cached, sent = sum(40 + 150 * turn for turn in range(1, 15)), sum(100 + 150 * turn for turn in range(1, 15))
    assert figures["cached_share_from_turn_1"] == pytest.approx(cached / sent)
    assert figures["images_processed_by_turn"] == [1] * 15
    assert figures["images_processed_of_sent"] == pytest.approx(15 / 120)
    with pytest.raises(RuntimeError, match="must have 15 turns"):
        benchmark.by_turn(list(calls_of(2, 14, 500.0)))


def test_the_image_cache_holds_the_share_that_the_recipes_holds():
    held = 4.0 * 1e9 / benchmark.BYTES_OF_RECIPES_IMAGE
    ours = benchmark.scaled_cache_gb(4.0, 16) * 1e9 / benchmark.BYTES_OF_IMAGE
    assert ours == pytest.approx(held) and benchmark.scaled_cache_gb(4.0, 8) == benchmark.scaled_cache_gb(4.0, 16) / 2
    assert benchmark.recipes_cache_gb() >= 4.0
