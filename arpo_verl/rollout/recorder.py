"""Writes an episode to disk: `<dir>/step_000012/<task>__<uid>_<session>/` with `episode.json`, `tokens.json`
and its screenshots."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo_verl.rollout.episode import Episode, Turn
from arpo_verl.rollout.scoring import Score
from arpo_verl.rollout.sequence import Generated
from arpo_verl.types import Action

logger = logging.getLogger(__name__)

EPISODE_FILE = "episode.json"
TOKENS_FILE = "tokens.json"
"""The policy's replies as token ids with their log-probs: a store of successes can be seeded from them."""
_PNG = b"\x89PNG"


@dataclass(frozen=True)
class EpisodeRecord:
    """What is written of an episode beside its screenshots."""

    step: int
    uid: str
    session: int
    task_id: str
    content: Mapping[str, Any]
    replies: Sequence[Generated] = ()

    @classmethod
    def of_row(cls, row: Mapping[str, Any], episode: Episode, score: Score, desktop: str = "") -> EpisodeRecord:
        """Put together the row's place in the training and what the episode came to."""
        step, uid, session = int(row.get("global_steps", 0)), str(row.get("uid", "")), int(row.get("session_id", 0))
        content = {
            "task_id": episode.task.task_id,
            "instruction": episode.task.instruction,
            "step": step,
            "uid": uid,
            "session": session,
            "validation": None,
            "desktop": desktop,
            "stop_reason": episode.stop_reason.value,
            "success": episode.success,
            "format_error": episode.format_error,
            "reward": score.reward,
            "reward_extra_info": dict(score.extra_info),
            "num_steps": len(episode.turns),
            "prompt_tokens": len(episode.sequence.prompt_ids),
            "response_tokens": len(episode.sequence.response_ids),
            "generate_s": episode.generate_s,
            "desktop_s": episode.desktop_s,
            "image_size": list(episode.image_size),
            "evaluator": [dataclasses.asdict(call) for call in episode.metrics],
            "turns": [_turn(index, turn) for index, turn in enumerate(episode.turns)],
        }
        return cls(step, uid, session, episode.task.task_id, content, tuple(episode.sequence.replies))

    @property
    def folder(self) -> Path:
        """Relative to the trajectory directory; from names that may hold anything."""
        names = (re.sub(r"[^\w.-]", "_", name)[:80] for name in (self.task_id, self.uid))
        return Path(f"step_{self.step:06d}") / ("__".join(names) + f"_{self.session}")


async def record_episode(directory: str, record: EpisodeRecord, screenshots: Sequence[bytes]) -> None:
    """Write it in a thread. A disk that fails costs the record, not the episode."""
    try:
        if record.content["validation"] is None:
            validation = await _runs_in_validation(record.uid)
            record = dataclasses.replace(record, content={**record.content, "validation": validation})
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, write_episode, Path(directory), record, screenshots)
    except OSError:
        logger.exception("an episode of task %s could not be written below %s", record.task_id, directory)


def write_episode(directory: Path, record: EpisodeRecord, screenshots: Sequence[bytes]) -> Path:
    """Write one episode's folder; it appears whole or not at all.

    Raises:
        OSError: the disk refuses.
    """
    folder = directory / record.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        names = [f"{i:02d}.{'png' if shot.startswith(_PNG) else 'jpg'}" for i, shot in enumerate(screenshots)]
        for name, screenshot in zip(names, screenshots, strict=True):
            (scratch / name).write_bytes(screenshot)
        text = json.dumps({**record.content, "screenshots": names}, indent=1, ensure_ascii=False, default=str)
        (scratch / EPISODE_FILE).write_text(text + "\n", encoding="utf-8", errors="replace")
        tokens = [dataclasses.asdict(reply) for reply in record.replies]
        (scratch / TOKENS_FILE).write_text(json.dumps(tokens, separators=(",", ":")) + "\n", encoding="utf-8")
        scratch.chmod(0o755)
        if folder.exists():  # the same session anew, after a run was resumed
            shutil.rmtree(folder)
        os.replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


async def _runs_in_validation(uid: str) -> bool | None:
    """Whether veRL validates: it does not tell its loops, but queues validation prompts apart. None: not known."""
    import transfer_queue as tq

    try:
        tq.get_client()  # without it, listing keys would start a Ray to look for a queue
        partitions = await tq.async_kv_list(partition_id="val")
    except (AssertionError, RuntimeError):
        logger.debug("no TransferQueue to ask whether episode %s validates", uid, exc_info=True)
        return None
    return uid in partitions.get("val", {})


def _turn(index: int, turn: Turn) -> dict[str, Any]:
    return {
        "screenshot": index,
        "text": turn.text,
        "thought": turn.thought,
        "actions": [_action(action) for action in turn.actions],
        "parse_error": turn.parse_error,
    }


def _action(action: Action) -> dict[str, Any]:
    return {"action": type(action).__name__, **dataclasses.asdict(action)}
