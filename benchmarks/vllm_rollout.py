"""veRL's own vLLM rollout with our agent loop, the stock trainer and embedded desktops, on a CPU.

    make vllm && .cache/vllm/bin/python benchmarks/vllm_rollout.py [--smoke] [--json [PATH]] [--steps N] [--work DIR]

A run of the stock trainer in each of its modes, with an update of vLLM's weights after every step, in fp32: how far are
the probabilities of its tokens from the trainer's, and was a session lost? Before the synchronous run trains, it
validates on episodes of 15 turns (`rollout_calls.py` keeps them going): how much of each prompt was cached, and how
many of its images were processed, with an image cache that holds as many screenshots as the OSWorld recipe's does of
1080p? `--smoke` trains in the synchronous mode alone. A run that is whole in `--work` is read, not repeated.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from figures import machine, report
from trainer_run import MODES, ROOT, TASKS, Workplace, read_steps, trainer_arguments

TURNS = 15
GROUP = 2
"""Rollouts of a task in training."""
BYTES_OF_RECIPES_IMAGE = 25.3e6
"""A processed 1080p screenshot in vLLM's cache, in bfloat16: measured in vLLM 0.24 with UI-TARS-1.5's processor."""
BYTES_OF_IMAGE = 468 * 1176 * 4
"""One of ours there: 18 x 26 patches of 1,176 values, in float32."""
RECIPES_EPISODES = 16
"""That an engine of the OSWorld recipes has at once: 64 rollouts on four, or 128 on eight."""
RECIPE = ROOT / "recipes" / "osworld_full.yaml"
VLLMS_DEFAULT_GB = 4.0
PROBS_DIFF = "replay/without/training/rollout_probs_diff_max"
"""Of this step's rollouts: what replaces one was written by an older policy."""
SEGMENTS = Path("/dev/shm")
SEGMENTS_TIMEOUT_S = 30.0


def recipes_cache_gb() -> float:
    """`mm_processor_cache_gb` of the OSWorld recipes, or vLLM's own where they name none."""
    import yaml

    options = yaml.safe_load(RECIPE.read_text())["actor_rollout_ref"]["rollout"]["engine_kwargs"]["vllm"]
    return float(options.get("mm_processor_cache_gb", VLLMS_DEFAULT_GB))


def scaled_cache_gb(cache_gb: float, episodes: int) -> float:
    """A cache that holds as large a share of the images of `episodes` episodes as `cache_gb` does of the recipes'."""
    return cache_gb * BYTES_OF_IMAGE / BYTES_OF_RECIPES_IMAGE * episodes / RECIPES_EPISODES


def train(place: Workplace, mode: str, steps: int, *options: str) -> dict[int, dict[str, Any]]:
    """The metrics of a run with vLLM to the end of step `steps`; of one that is there, if it is whole."""
    run_dir = place.folder / f"vllm-{mode}"
    calls = run_dir / "calls"
    if steps not in read_steps(run_dir):
        shutil.rmtree(calls, ignore_errors=True)
        calls.mkdir(parents=True)
        path = os.pathsep.join([str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {"VERL_USE_EXTERNAL_MODULES": "rollout_calls", "PYTHONPATH": path, "BENCHMARK_CALLS": str(calls)}
        fixed = [
            "+engine=vllm_cpu",
            *MODES[mode],
            f"actor_rollout_ref.rollout.n={GROUP}",
            "trainer.save_freq=-1",
        ]
        place.start(run_dir.name, steps, *fixed, *options, env=env).wait()
    return read_steps(run_dir)


def long_episodes(episodes_a_task: int) -> list[str]:
    """Options of a run that validates on so many episodes a task before it trains, all at once."""
    episodes = len(TASKS) * episodes_a_task
    cache_gb = scaled_cache_gb(recipes_cache_gb(), episodes)
    return [
        "trainer.val_before_train=true",
        f"actor_rollout_ref.rollout.val_kwargs.n={episodes_a_task}",
        f"gui_agent.max_steps={TURNS}",
        f"gui_agent.max_screenshots={TURNS}",
        "data.max_response_length=3584",
        "actor_rollout_ref.rollout.max_model_len=4096",
        f"+actor_rollout_ref.rollout.engine_kwargs.vllm.mm_processor_cache_gb={cache_gb}",
    ]


def read_calls(run_dir: Path) -> list[dict[str, Any]]:
    """What `rollout_calls.py` noted in a run, in order."""
    lines = [line for path in (run_dir / "calls").glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda call: call["at"])


def by_turn(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What an episode of 15 turns asks of the engine: means over the episodes, a value a turn."""
    replies: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for call in calls:
        if call.get("session", "").startswith("kept-going"):
            replies[call["turn"]].append(call)
    if sorted(replies) != list(range(TURNS)) or len(set(map(len, replies.values()))) != 1:
        found = {turn: len(replies[turn]) for turn in sorted(replies)}
        raise RuntimeError(f"every episode must have {TURNS} turns, got episodes by turn {found}")
    # Before them vLLM tries itself out, after them comes training.
    begin = min(call["begin"] for turn in replies.values() for call in turn)
    end = max(call["at"] for turn in replies.values() for call in turn)
    images: dict[int, list[int]] = defaultdict(list)
    for call in calls:
        if "images" in call and begin <= call["at"] <= end:
            images[call["images"] - 1].append(call["processed"])
    prompts = [statistics.fmean(call["prompt_tokens"] for call in replies[turn]) for turn in range(TURNS)]
    cached = [statistics.fmean(call["cached_tokens"] for call in replies[turn]) for turn in range(TURNS)]
    processed = [statistics.fmean(images[turn]) for turn in range(TURNS)]
    return {
        "episodes": len(replies[0]),
        "prompt_tokens_by_turn": prompts,
        "cached_tokens_by_turn": cached,
        "prefilled_tokens_by_turn": [prompt - hit for prompt, hit in zip(prompts, cached, strict=True)],
        "cached_share_from_turn_1": sum(cached[1:]) / sum(prompts[1:]),
        "images_sent_by_turn": [turn + 1 for turn in range(TURNS)],
        "images_processed_by_turn": processed,
        "images_processed_of_sent": sum(processed) / sum(range(1, TURNS + 1)),
    }


def segments() -> set[str]:
    """Shared memory under the name that Python gives it."""
    return {path.name for path in SEGMENTS.glob("psm_*")}


def left_segments(before: set[str]) -> list[str]:
    """What has come since and does not go."""
    deadline = time.monotonic() + SEGMENTS_TIMEOUT_S
    while (left := segments() - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    return sorted(left)


def main() -> None:
    parser = trainer_arguments(__doc__, "two steps of the synchronous mode, four long episodes")
    parser.add_size("--steps", 3, 2, "training steps in each mode")
    parser.add_size("--episodes-a-task", 2, 1, f"of {TURNS} turns each, on {len(TASKS)} tasks")
    arguments = parser.parse()
    before, figures = segments(), {**machine(), "vllm": version("vllm-cpu"), "steps": arguments.steps}
    place = Workplace.make(arguments.work)
    modes = ("sync",) if arguments.smoke else tuple(MODES)
    for mode in modes:
        options = long_episodes(arguments.episodes_a_task) if mode == "sync" else []
        steps = train(place, mode, arguments.steps, *options)
        figures[mode] = {
            "dropped_sessions": sum(int(step["environment/dropped_sessions"]) for step in steps.values()),
            "rollout_probs_diff_max": max(step[PROBS_DIFF] for step in steps.values()),
            "step_s": statistics.fmean(step["timing_s/step"] for step in steps.values()),
            "update_weights_s": statistics.fmean(step["timing_s/update_weights"] for step in steps.values()),
        }
    figures["dropped_sessions"] = sum(figures[mode]["dropped_sessions"] for mode in modes)
    figures["rollout_probs_diff_max"] = figures["sync"]["rollout_probs_diff_max"]
    figures |= by_turn(read_calls(place.folder / "vllm-sync"))
    figures["recipes_image_cache_gb"] = recipes_cache_gb()
    figures["image_cache_gb"] = scaled_cache_gb(recipes_cache_gb(), figures["episodes"])
    figures["segments_left"] = left_segments(before)
    report({**figures, "load_after": os.getloadavg()[0]}, arguments.json)


if __name__ == "__main__":
    main()
