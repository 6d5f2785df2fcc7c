"""Chooses a few episodes to look at: the newest failures, and the newest first successes of tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from arpo_verl.records.layout import screenshot_names
from arpo_verl.records.run import Run, Snapshot
from arpo_verl.records.summaries import EpisodeSummary

EPISODES_A_KIND = 3
MAX_TURNS = 12
TEXT_CHARACTERS = 400
_ACTIONS, _ACTION_CHARACTERS = 8, 1000
"""Most actions of a turn, and most characters of an action as JSON; we leave out longer ones."""


def choose_samples(run: Run, snapshot: Snapshot, training: Sequence[EpisodeSummary]) -> dict[str, list[dict[str, Any]]]:
    """Choose failures and first successes, of tasks that no earlier recorded training episode had solved: the newest
    first, one for each task.

    Args:
        training: the training episodes, in the order of their steps.
    """
    failures: dict[str, EpisodeSummary] = {}
    first_successes: dict[str, EpisodeSummary] = {}
    for episode in training:
        if episode.success is not None and episode.success < 1:
            failures[episode.task_id] = episode
        elif episode.success is not None and episode.task_id not in first_successes:
            first_successes[episode.task_id] = episode
    chosen = {"failures": failures, "first_successes": first_successes}
    return {name: _read_newest(run, snapshot, episodes) for name, episodes in chosen.items()}


def _read_newest(run: Run, snapshot: Snapshot, chosen: Mapping[str, EpisodeSummary]) -> list[dict[str, Any]]:
    newest = sorted(chosen.values(), key=lambda episode: (episode.step, episode.id), reverse=True)
    return [_sample(run, snapshot, episode) for episode in newest[:EPISODES_A_KIND]]


def _sample(run: Run, snapshot: Snapshot, episode: EpisodeSummary) -> dict[str, Any]:
    try:
        content, files = run.episode(episode.id), screenshot_names(run.folder(episode.id))
    except (KeyError, OSError):  # removed meanwhile
        content, files = {}, []
    turns = content.get("turns", [])
    shown, named = turns[:MAX_TURNS], {int(name.partition(".")[0]): name for name in files}
    screenshots = [named.get(turn.get("screenshot", number)) for number, turn in enumerate(shown)]
    training = snapshot.training(episode.id)
    names = ("id", "task_id", "instruction", "step", "session", "success", "reward", "stop_reason", "num_turns")
    return {
        **{name: getattr(episode, name) for name in names},
        "advantage": training.advantage,
        "replaced": training.replaced,
        "turns": [{"screenshot": number, **_turn(turn)} for number, turn in enumerate(shown)],
        "screenshots": screenshots,
        "folder_files": [name for name in screenshots if name is not None],
        "turns_left_out": len(turns) - len(shown),
        "evaluator": [_verdict(call) for call in content.get("evaluator", [])[-1:]],
    }


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "actions": [
            action for action in turn.get("actions", [])[:_ACTIONS] if len(json.dumps(action)) <= _ACTION_CHARACTERS
        ],
        "parse_error": _start(turn, "parse_error") or None,
        "thought": _start(turn, "thought"),
    }


def _verdict(call: Mapping[str, Any]) -> dict[str, str]:
    return {name: _start(call, name) for name in ("metric", "result", "expected", "returned")}


def _start(part: Mapping[str, Any], name: str) -> str:
    return str(part.get(name) or "")[:TEXT_CHARACTERS]
