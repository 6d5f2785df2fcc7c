"""Names the files of a run's folder; docs/trajectories.md shows them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from arpo_verl.lib.untrusted import read_regular

METRICS_FILE = "metrics.jsonl"
"""veRL writes this; the files of earlier starts are beside it, see `records.metrics_files`."""
STARTS_FILE = "starts.jsonl"
POOL_FILE = "pool.json"
OUTPUT_FILE = "output.log"
"""The output of the trainer and all that it starts, if `arpo-verl train` started it."""
CHECKPOINTS = "checkpoints"
LATEST_CHECKPOINT = "latest_checkpointed_iteration.txt"
"""veRL writes this beside the checkpoints: the step of the checkpoint to resume from."""
TRAJECTORIES = "trajectories"
EVALUATION_FILE = "evaluation.json"
"""The settings of an evaluation, in its folder; see `evaluation.folder`."""
FAULTS_FILE = "faults.jsonl"
"""In a run's folder, what ended its starts early, see `records.ended_starts`. In an evaluation's, trials that
infrastructure failed."""
RESULTS_FILE = "results.json"
"""The results of an evaluation, with its tables."""

EPISODE_FILE = "episode.json"
TOKENS_FILE = "tokens.json"
"""The policy's replies as token ids with log-probs, which can seed a store of successes."""
HARNESS_LOG_FILE = "harness.log"
"""The output of a harness's command."""
LOG_PROBS_FILE = "log_probs.jsonl"
"""The trainer's log-probs of these tokens, with a line for each step that trained on the episode."""
LIVE_FILE = "live.json"
GROUPS_FILE = "groups.jsonl"
FRONTIER_FILE = "frontier.jsonl"
"""Frontier sampling's estimates, beside the step folders, one line a step; see `records.frontier`."""
JUMPS_FILE = "jumps.jsonl"
"""Tasks whose success jumped to 100% within a step, beside the step folders; see `records.jumps`."""
HIDDEN = "."
"""The first character of an episode's folder while the episode is played."""
SCREENSHOT_NAME = re.compile(r"[0-9]{2,6}\.(png|jpg|jpeg|webp)")

_PNG = b"\x89PNG"
_MOST_STEP_BYTES = 100
"""Most bytes of a file with a step's number."""


def saved_step(checkpoints: Path) -> int | None:
    """Return the step of the checkpoint that a run resumes from; None without one."""
    try:
        step = int(read_regular(checkpoints / LATEST_CHECKPOINT, _MOST_STEP_BYTES))
    except (OSError, ValueError):
        return None
    return step if step >= 0 else None


def step_folder(step: int) -> str:
    """Return the folder's name for a training step's episodes."""
    return f"step_{step:06d}"


def step_of(folder_name: str) -> int | None:
    """Return the step of a folder `step_000012`; None for other folders."""
    match = re.fullmatch(r"step_([0-9]{1,15})", folder_name)
    return int(match[1]) if match else None


def screenshot_name(number: int, screenshot: bytes) -> str:
    """Return the file name of the episode's screenshot with this number, from 0."""
    return f"{number:02d}.{'png' if screenshot.startswith(_PNG) else 'jpg'}"


def is_screenshot(name: str) -> bool:
    """Return whether a file's name in an episode's folder is a screenshot's."""
    return SCREENSHOT_NAME.fullmatch(name) is not None


def screenshot_names(folder: Path) -> list[str]:
    """Return the names of the screenshots in an episode's folder, in order."""
    return sorted(filter(is_screenshot, os.listdir(folder)), key=lambda name: int(name.partition(".")[0]))
