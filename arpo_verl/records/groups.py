"""Reads how the trainer used the episodes: their advantages, and which ones a replay replaced (`groups.jsonl`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from arpo_verl.records.episode_file import EpisodeKey
from arpo_verl.records.json_files import GrowingFile, Integer, Number
from arpo_verl.records.layout import GROUPS_FILE
from arpo_verl.records.summaries import EpisodeSummary
from arpo_verl.replay.groups import FIRST_ADDED


class TrainedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A trained member of a group: an episode, with one or several rows of tokens."""

    uid: str = ""
    task_id: str | None = None
    session: Integer
    step: Integer | None = None
    reward: Number | None = None
    advantage: Number | None = None
    replay: EpisodeKey | None = None
    """The replayed episode, without uid and session if another run recorded it."""

    @property
    def added(self) -> bool:
        """Whether it is a replay that stands beside its group, and replaced no episode."""
        return self.replay is not None and self.session >= FIRST_ADDED

    @property
    def replaced(self) -> bool:
        """Whether a replay replaced the episode; then reward and advantage are the replay's."""
        return self.replay is not None and not self.added


class TrainedGroup(msgspec.Struct, frozen=True):
    """The episodes of one prompt that a step trained on together, by session."""

    uid: str
    rows: tuple[TrainedRow, ...]
    task_id: str | None = None
    step: Integer | None = None

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as plain values, for a table."""
        return [{**msgspec.structs.asdict(row), "replaced": row.replaced} for row in self.rows]

    def trained_rows(self) -> list[TrainedRow]:
        """Return the rows of a line of `groups.jsonl`, where only the group names prompt, task and step."""
        place = {"uid": self.uid, "task_id": self.task_id, "step": self.step}
        return [msgspec.structs.replace(row, **place) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Training:
    """How training used a recorded episode; the ids are of episodes on disk."""

    advantage: float | None = None
    """None if training did not use the episode itself: it played no part, or a replay replaced it."""
    replaced: bool = False
    replayed_by: str | None = None
    replayed_into: tuple[str, ...] = ()
    """The episodes whose places it took."""
    replayed_beside: tuple[str, ...] = ()
    """An episode of each group that it stood beside."""


UNTRAINED = Training()


class Groups:
    """Reads the growing `groups.jsonl` of all step folders. It is not thread-safe: its `Run` locks."""

    def __init__(self, root: Path):
        self.root = root
        self._files: dict[str, GrowingFile[TrainedGroup]] = {}
        self._rows: dict[str, dict[tuple[str, int], TrainedRow]] = defaultdict(dict)

    def refresh(self, steps: Iterable[str]) -> bool:
        """Read what was appended in these step folders; return whether there was anything."""
        changed = False
        for step in steps:
            file = self._files.setdefault(step, GrowingFile(self.root / step / GROUPS_FILE, TrainedGroup))
            lines = file.read_new(forget=self._rows[step].clear)
            rows = [row for line in lines for row in line.trained_rows()]
            self._rows[step].update({(row.uid, row.session): row for row in rows})
            changed = changed or bool(lines)
        return changed

    def rows(self) -> dict[tuple[str, int], TrainedRow]:
        """Return every row by uid and session. The later step wins, if a step was repeated after a checkpoint."""
        return {key: row for step in sorted(self._rows) for key, row in self._rows[step].items()}


class TrainingIndex:
    """Joins recorded episodes, in the order of their steps, with trained rows, at one moment."""

    def __init__(self, episodes: Iterable[EpisodeSummary], rows: Mapping[tuple[str, int], TrainedRow]):
        self._ids: dict[EpisodeKey, str] = {}
        self._members: dict[str, dict[int, str]] = defaultdict(dict)
        for episode in episodes:
            self._ids[episode.key] = self._ids[EpisodeKey(None, episode.uid, episode.session)] = episode.id
            self._members[episode.uid][episode.session] = episode.id
        self._rows: dict[str, dict[int, TrainedRow]] = defaultdict(dict)
        for (uid, session), row in rows.items():
            self._rows[uid][session] = row
        self.training = self._join()

    def id_of(self, key: EpisodeKey | None) -> str | None:
        """Return the recorded episode of a reference; None if it is not on disk."""
        return None if key is None else self._ids.get(key)

    def group_of(self, episode: EpisodeSummary) -> list[tuple[int, str | None, TrainedRow | None]]:
        """Return the sessions of its group: number, and recorded episode or trained row or both."""
        if not episode.uid:
            return [(episode.session, episode.id, None)]
        members, rows = self._members[episode.uid], self._rows.get(episode.uid, {})
        return [(session, members.get(session), rows.get(session)) for session in sorted({*members, *rows})]

    def groups(self) -> list[list[TrainedRow]]:
        """Return the trained rows of each group, in the order of the steps."""
        return [list(rows.values()) for rows in self._rows.values() if rows]

    def _join(self) -> dict[str, Training]:
        into: dict[str, list[str]] = defaultdict(list)
        beside: dict[str, list[str]] = defaultdict(list)
        trained: dict[str, Training] = {}
        for uid, sessions in self._rows.items():
            for session, row in sessions.items():
                episode_id = self._members.get(uid, {}).get(session)
                source = self.id_of(row.replay)
                if episode_id is not None:
                    advantage = None if row.replaced else row.advantage
                    trained[episode_id] = Training(advantage, row.replaced, source)
                if episode_id is not None and source is not None:
                    into[source].append(episode_id)
                elif row.added and source is not None:
                    beside[source] += [member for _, member in sorted(self._members.get(uid, {}).items())[:1]]
        return {
            episode_id: replace(
                trained.get(episode_id, UNTRAINED),
                replayed_into=tuple(sorted(into.get(episode_id, ()))),
                replayed_beside=tuple(sorted(beside.get(episode_id, ()))),
            )
            for episode_id in {*trained, *into, *beside}
        }
