"""Reads what happens now: the episodes being played and the desktop pool, from the trainer's files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo_verl.records.episode_file import read_content
from arpo_verl.records.json_files import as_number, read_json
from arpo_verl.records.layout import LIVE_FILE, POOL_FILE, screenshot_names

POOL_FRESH_S = 60.0
"""A pool writes its state at least every 15 s; after this long without one, its trainer has ended."""
RUNNING_S = 900.0
"""No turn takes this long: an episode without a write for longer was left by a killed trainer."""
REPLY_CHARACTERS = 2000
_TRIES, _RETRY_S = 3, 0.005


@dataclass(frozen=True)
class RunningEpisode:
    """An episode that is being played."""

    id: str
    """`step_000012/.<folder>`: it changes when the episode is finished."""
    content: dict[str, Any]
    """The content of its `live.json`."""
    screenshots: tuple[str, ...]

    @property
    def turns(self) -> list[dict[str, Any]]:
        turns: list[dict[str, Any]] = self.content.get("turns", [])
        return turns


def read_running(folders: Iterable[Path]) -> list[RunningEpisode]:
    """Read the episodes that are being played in these folders, without those that just ended."""
    episodes = []
    for folder in folders:
        try:
            if time.time() - (folder / LIVE_FILE).stat().st_mtime > RUNNING_S:
                continue
            content = _read_overwritten(folder / LIVE_FILE)
            names = tuple(screenshot_names(folder))
        except (OSError, ValueError):
            continue
        episodes.append(RunningEpisode(f"{folder.parent.name}/{folder.name}", content, names))
    return episodes


def _read_overwritten(path: Path) -> dict[str, Any]:
    """Read a file that is overwritten in place; during a write it has no JSON, so try again."""
    for _ in range(_TRIES - 1):
        try:
            return read_content(path)
        except ValueError:
            time.sleep(_RETRY_S)
    return read_content(path)


def read_pool(run_dir: Path) -> dict[str, Any] | None:
    """Return the pool's state; None if there is none, or if its trainer has ended."""
    try:
        pool = read_json(run_dir / POOL_FILE, dict[str, Any])
    except (OSError, ValueError):
        return None
    written = as_number(pool.get("time"))
    return pool if written is not None and time.time() - written < POOL_FRESH_S else None
