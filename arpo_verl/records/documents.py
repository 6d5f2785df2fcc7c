"""Makes an episode's JSON documents, and names their folder. Pure; docs/trajectories.md lists all fields."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo_verl.agent.rollout.episode import Episode, Turn
from arpo_verl.agent.rollout.scoring import Score
from arpo_verl.agent.rollout.sequence import EpisodeSequence, Generated
from arpo_verl.records.layout import screenshot_name, step_folder
from arpo_verl.replay.rules import task_content
from arpo_verl.types import Action, EpisodeId, Task


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode's record, apart from its screenshots."""

    id: EpisodeId
    task_id: str
    content: Mapping[str, Any]
    replies: Sequence[Generated] = ()
    tokens: Sequence[Sequence[str]] = ()
    """The text of each token of `replies`; empty if unknown."""
    seen: Sequence[int] | None = None
    """See `Episode.seen`."""
    log: bytes = b""
    """See `Episode.log`."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any], episode: Episode, score: Score, desktop: str = "") -> EpisodeRecord:
        """Combine the row's place in the training with the episode's results."""
        id = id_of_row(row)
        content = {
            **_whereabouts(id, episode.task),
            "validation": None,
            "desktop": desktop,
            "started_at": episode.started_at,
            "programs": _programs(episode.task),
            "task_content": task_content(episode.task.instruction, episode.task.spec),
            "stop_reason": episode.stop_reason.value,
            "success": episode.success,
            "share": episode.share,
            "format_error": episode.format_error,
            "reward": score.reward,
            "reward_extra_info": dict(score.extra_info),
            "num_turns": len(episode.turns),
            "prompt_tokens": sum(len(row.prompt_ids) for row in episode.rows),
            "response_tokens": sum(len(row.response_ids) for row in episode.rows),
            "rows": [_row(row) for row in episode.rows],
            "wall_s": episode.wall_s,
            "generate_s": episode.generate_s,
            "desktop_s": episode.desktop_s,
            "reset_s": episode.reset_s,
            "evaluate_s": episode.evaluate_s,
            "image_size": list(episode.image_size),
            "evaluator": [dataclasses.asdict(call) for call in episode.metrics],
            "turns": _turns(episode.turns),
            "screenshots": [screenshot_name(*numbered) for numbered in enumerate(episode.screenshots)],
            "verdicts": [dataclasses.asdict(verdict) for verdict in episode.verdicts],
        }
        replies = tuple(reply for row in episode.rows for reply in row.replies)
        tokens = tuple(turn.tokens for turn in episode.turns if turn.tokens)
        is_whole = [len(texts) for texts in tokens] == [len(reply.token_ids) for reply in replies]
        return cls(id, episode.task.task_id, content, replies, tokens if is_whole else (), episode.seen, episode.log)

    @property
    def folder(self) -> Path:
        """The episode's folder, relative to the trajectory directory."""
        return folder_of(self.id, self.task_id)

    @property
    def step(self) -> int:
        return self.id.step


def id_of_row(row: Mapping[str, Any]) -> EpisodeId:
    """Return the episode's id, from a dataset row with veRL's additions."""
    return EpisodeId(int(row.get("global_steps", 0)), str(row.get("uid", "")), int(row.get("session_id", 0)))


def folder_of(id: EpisodeId, task_id: str) -> Path:
    """Return an episode's folder, relative to the trajectory directory, from names with any characters."""
    names = (re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:80] for name in (task_id, id.uid))
    # A leading dot would mean that the episode is still being played.
    return Path(step_folder(id.step)) / (re.sub(r"^\.", "_", "__".join(names)) + f"_{id.session}")


def live_document(id: EpisodeId, task: Task, desktop: str, started_at: float, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return what is known about an episode while it is played."""
    return {**_whereabouts(id, task), "desktop": desktop, "started_at": started_at, "turns": _turns(turns)}


def _whereabouts(id: EpisodeId, task: Task) -> dict[str, Any]:
    return {"task_id": task.task_id, "instruction": task.instruction, **dataclasses.asdict(id)}


def _programs(task: Task) -> list[str]:
    """Return the programs that the task's file names, as OSWorld's, the shipped and the generated tasks do."""
    named = task.spec.get("related_apps")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def _turns(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    return [
        {
            "screenshot": number if turn.screenshot is None else turn.screenshot,
            "text": turn.text,
            "thought": turn.thought,
            "actions": [_action(action) for action in turn.actions],
            "parse_error": turn.parse_error,
            "generate_s": turn.generate_s,
            "desktop_s": turn.desktop_s,
            "first_screenshot": turn.first_screenshot,
            **({} if turn.request is None else {"request": turn.request}),
        }
        for number, turn in enumerate(turns)
    ]


def _row(row: EpisodeSequence) -> dict[str, Any]:
    """Describe a token row that the trainer got."""
    return {
        "prompt_tokens": len(row.prompt_ids),
        "response_tokens": len(row.response_ids),
        "reply_tokens": sum(row.response_mask),
        "first_screenshot": row.screenshots.start,
        "num_screenshots": len(row.screenshots),
    }


def _action(action: Action) -> dict[str, Any]:
    return {"action": type(action).__name__, **dataclasses.asdict(action)}
