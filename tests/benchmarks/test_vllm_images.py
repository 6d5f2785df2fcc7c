"""`benchmarks/vllm_images.py` takes apart by turn what vLLM's processes counted."""

import time

import pytest
import vllm_counters
import vllm_images as benchmark

pytestmark = pytest.mark.study


def counts(turn, role):
    """Of two episodes: a megabyte for each image that a turn shows, one processed, and 30 ms that are not idle."""
    images = turn * (turn + 1) // 2
    found = dict.fromkeys(vllm_counters.COUNTS, 0) | {"cpu_ns": 200_000_000 * turn, "waited_ns": 140_000_000 * turn}
    return found | {"api": {"processed": 2 * turn}, "core": {"sent": 2_000_000 * images}, "worker": {}}[role]


def test_figures_are_of_one_episode_and_one_turn():
    turns = [
        {
            "before": {role: counts(turn, role) for role in vllm_counters.ROLES},
            "after": {role: counts(turn + 1, role) for role in vllm_counters.ROLES},
            "prompt_tokens": [1000 * (turn + 1)] * 2,
            "cached_tokens": [1000 * turn] * 2,
            "wall_s": [1.0, 2.0],
        }
        for turn in range(15)
    ]
    figures = benchmark.figures(turns)
    assert figures["episodes"] == 2 and figures["bytes"] == [1_000_000 * (turn + 1) for turn in range(15)]
    assert figures["turn15_over_turn2"] == 7.5 and figures["bytes_of_episode"] == 120_000_000
    assert figures["core_cpu_ms"] == figures["worker_cpu_ms"] == pytest.approx([30.0] * 15)
    assert figures["processings_per_screenshot"] == 1 and figures["prefilled_tokens"] == [1000] * 15
    assert figures["wall_s"] == [2.0] * 15
    less = {**figures, "bytes_of_episode": 12_000_000, "turn15_over_turn2": 1.0}
    summary = benchmark.summary({"lru": figures, "shm": less})
    assert summary["bytes_ratio"] == 10 and summary["turn15_over_turn2"] == 1
    assert benchmark.summary({"lru": figures})["bytes_ratio"] == 1


def test_counts_are_read_while_a_process_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_counters, "_counts", None)
    vllm_counters.add("sent", 5)  # before it begins
    with vllm_counters.installed(tmp_path / "counts") as variables:
        monkeypatch.setenv(vllm_counters.VARIABLE, variables[vllm_counters.VARIABLE])
        vllm_counters.begin("worker")
        vllm_counters.add("sent", 7)
        found = vllm_counters.read_counts(tmp_path / "counts")["worker"]
    assert found["sent"] == 7 and found["read"] == 0
    used = time.clock_gettime_ns(time.CLOCK_PROCESS_CPUTIME_ID) - found["cpu_ns"]
    assert 0 <= used and found["cpu_ns"] > 0
