"""What each file of a run's folder is called. docs/trajectories.md has the picture."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from arpo_verl.records.json_files import read_json_object
from arpo_verl.untrusted import read_regular

METRICS_FILE = "metrics.jsonl"
"""veRL's own; those of earlier starts lie beside it, see `records.metrics`."""
STARTS_FILE = "starts.jsonl"
POOL_FILE = "pool.json"
OUTPUT_FILE = "output.log"
"""What the trainer and all that it starts print, where `arpo-verl train` started it."""
CHECKPOINTS = "checkpoints"
LATEST_CHECKPOINT = "latest_checkpointed_iteration.txt"
"""veRL's own, among the checkpoints: the step of the one to go on from."""
TRAJECTORIES = "trajectories"
EVALUATION_FILE = "evaluation.json"
"""What an evaluation was made with, in its folder; see `evaluation.folder`."""
FAULTS_FILE = "faults.jsonl"
"""Trials of an evaluation that infrastructure failed."""
RESULTS_FILE = "results.json"
"""What an evaluation came to, with its tables."""

EPISODE_FILE = "episode.json"
TOKENS_FILE = "tokens.json"
"""The policy's replies as token ids with their log-probs: a store of successes can be seeded from them."""
HARNESS_LOG_FILE = "harness.log"
"""What a harness's command printed."""
LOG_PROBS_FILE = "log_probs.jsonl"
"""Beside it: the trainer's log-probs of these tokens, a line for each training step that trained on the episode."""
LIVE_FILE = "live.json"
GROUPS_FILE = "groups.jsonl"
FRONTIER_FILE = "frontier.jsonl"
"""Beside the step folders: what frontier sampling thinks of the tasks, a line a step; see `records.frontier`."""
JUMPS_FILE = "jumps.jsonl"
"""Beside it: tasks whose success jumped to 100% within a step; see `records.jumps`."""
HIDDEN = "."
"""Begins the name of an episode's folder while it is played."""
SCREENSHOT_NAME = re.compile(r"[0-9]{2,6}\.(png|jpg|jpeg|webp)")

_PNG = b"\x89PNG"
_MOST_STEP_BYTES = 100
"""Of a file that holds a step's number."""


def saved_step(checkpoints: Path) -> int | None:
    """The step of the checkpoint that a run goes on from; None where there is none."""
    try:
        return int(read_regular(checkpoints / LATEST_CHECKPOINT, _MOST_STEP_BYTES))
    except (OSError, ValueError):
        return None


def step_folder(step: int) -> str:
    """The folder of a training step's episodes."""
    return f"step_{step:06d}"


def step_of(folder_name: str) -> int | None:
    """The step that a folder `step_000012` is for; None where it is no such folder."""
    match = re.fullmatch(r"step_([0-9]{1,15})", folder_name)
    return int(match[1]) if match else None


def screenshot_name(number: int, screenshot: bytes) -> str:
    """The file name of the episode's screenshot of this number, from 0."""
    return f"{number:02d}.{'png' if screenshot.startswith(_PNG) else 'jpg'}"


def is_screenshot(name: str) -> bool:
    """Whether a file of an episode's folder is one of its screenshots, by its name."""
    return SCREENSHOT_NAME.fullmatch(name) is not None


def screenshot_names(folder: Path) -> list[str]:
    """The screenshots in an episode's folder, in the order in which they were taken."""
    return sorted(filter(is_screenshot, os.listdir(folder)), key=lambda name: int(name.partition(".")[0]))


def read_episode(folder: Path) -> dict[str, Any]:
    """The `episode.json` of an episode's folder.

    Raises:
        OSError: it cannot be read.
        ValueError: it is torn.
    """
    return read_json_object(folder / EPISODE_FILE)
