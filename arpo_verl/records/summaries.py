"""Reads a recorded episode's summary, which lists show, from its folder."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from arpo_verl.records.episode_file import EpisodeKey, RecordedTurn, read_episode
from arpo_verl.records.layout import screenshot_names, step_of
from arpo_verl.types import Action

_AS_RECORDED = (
    *("task_id", "instruction", "uid", "validation", "success", "reward", "stop_reason", "format_error"),
    *("started_at", "wall_s", "generate_s", "desktop_s"),
)
ACTIONS = tuple(action.__name__ for action in get_args(Action))


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """An episode without its turns. None means that the run did not record a value; times are in seconds."""

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
    return EpisodeSummary(
        id=f"{folder.parent.name}/{folder.name}",
        **{name: getattr(content, name) for name in _AS_RECORDED},
        step=(step_of(folder.parent.name) or 0) if content.step is None else content.step,
        session=content.session or 0,
        num_turns=len(content.turns) if content.num_turns is None else content.num_turns,
        num_rows=1 if content.rows is None else len(content.rows),
        actions=_kinds_of(content.turns),
        programs=_names(tuple(name[:80] for name in content.programs[:20])),
        screenshots=len(screenshot_names(folder)),
    )


def _kinds_of(turns: list[RecordedTurn]) -> tuple[str, ...]:
    return _in_order(frozenset(action.action for turn in turns for action in turn.actions).intersection(ACTIONS))


@functools.cache
def _in_order(names: frozenset[str]) -> tuple[str, ...]:
    """Return one shared tuple for all episodes with these actions, since a run has many episodes."""
    return tuple(name for name in ACTIONS if name in names)


@functools.lru_cache(10_000)
def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return one shared tuple for all episodes with these programs."""
    return names
