"""This reads a recorded episode's summary, which lists show, from its folder."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from arpo_verl.records.json_files import as_number
from arpo_verl.records.layout import read_episode, screenshot_names, step_of
from arpo_verl.types import Action

ACTIONS = tuple(action.__name__ for action in get_args(Action))
_WHOLE_END = 1 << 53
"""Whole numbers must be below this, so that a browser can hold them exactly."""


class EpisodeKey(NamedTuple):
    """These values name an episode for the trainer. In a reference, unknown values are None."""

    step: int | None
    uid: str | None
    session: int | None


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """This is an episode without its turns. None means that the run did not record a value; times are in seconds."""

    id: str
    """`step_000012/<folder>`, unique in the run."""
    task_id: str
    instruction: str
    step: int
    uid: str
    session: int
    validation: bool | None
    success: float | None
    """The evaluator's score, in [0, 1]."""
    reward: float | None
    stop_reason: str
    num_turns: int
    num_rows: int
    """Number of the token rows that were trained on; 0 if no policy wrote tokens."""
    format_error: bool
    actions: tuple[str, ...]
    """The kinds of action that the agent took, in the order of `types.Action`."""
    programs: tuple[str, ...]
    """The programs that the task's file names."""
    screenshots: int
    """Number of screenshots on disk: the recording budget may have removed some."""
    started_at: float | None
    """When it started, as Unix time."""
    wall_s: float | None
    generate_s: float | None
    desktop_s: float | None

    @property
    def key(self) -> EpisodeKey:
        return EpisodeKey(self.step, self.uid, self.session)


def read_summary(folder: Path) -> EpisodeSummary:
    """Read an episode's folder.

    Raises:
        OSError: it cannot be read.
        ValueError: its `episode.json` is incomplete or no episode.
    """
    content = read_episode(folder)
    if not isinstance(content.get("task_id"), str):
        raise ValueError(f"task_id must be a string, got {content.get('task_id')!r}")
    turns, rows = _list(content.get("turns")), content.get("rows")
    return EpisodeSummary(
        id=f"{folder.parent.name}/{folder.name}",
        task_id=content["task_id"],
        instruction=_text(content, "instruction"),
        step=_whole(content, "step", step_of(folder.parent.name) or 0),
        uid=_text(content, "uid"),
        session=_whole(content, "session", 0),
        validation=content["validation"] if isinstance(content.get("validation"), bool) else None,
        success=as_number(content.get("success")),
        reward=as_number(content.get("reward")),
        stop_reason=_text(content, "stop_reason"),
        num_turns=_whole(content, "num_turns", len(turns)),
        num_rows=len(rows) if isinstance(rows, list) else 1,  # old records had one row only
        format_error=content.get("format_error") is True,
        actions=_kinds_of(turns),
        programs=_names(tuple(name[:80] for name in _list(content.get("programs"))[:20] if isinstance(name, str))),
        screenshots=len(screenshot_names(folder)),
        started_at=as_number(content.get("started_at")),
        wall_s=as_number(content.get("wall_s")),
        generate_s=as_number(content.get("generate_s")),
        desktop_s=as_number(content.get("desktop_s")),
    )


def _kinds_of(turns: list[Any]) -> tuple[str, ...]:
    actions = (_list(turn.get("actions")) for turn in turns if isinstance(turn, dict))
    named = [action.get("action") for several in actions for action in several if isinstance(action, dict)]
    return _in_order(frozenset(name for name in named if isinstance(name, str)).intersection(ACTIONS))


@functools.cache
def _in_order(names: frozenset[str]) -> tuple[str, ...]:
    """Return one shared tuple for all episodes with these actions, since a run has many episodes."""
    return tuple(name for name in ACTIONS if name in names)


@functools.lru_cache(10_000)
def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return one shared tuple for all episodes with these programs."""
    return names


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return value if isinstance(value, str) else ""


def _whole(content: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = content.get(name)
    return value if type(value) is int and abs(value) < _WHOLE_END else otherwise
