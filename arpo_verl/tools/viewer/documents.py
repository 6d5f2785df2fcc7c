"""Makes the page's JSON documents, the same for the server and for an export.

Times are in seconds, an `id` is `step_000012/<folder>`. Values that a run did not record are null.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from arpo_verl.records.groups import TrainedRow
from arpo_verl.records.jumps import Jump
from arpo_verl.records.live import REPLY_CHARACTERS, RunningEpisode
from arpo_verl.records.run import Run, Snapshot
from arpo_verl.records.summaries import EpisodeSummary
from arpo_verl.records.tokens import read_tokens
from arpo_verl.tools.viewer.evaluation import has_evaluation

COLUMNS = (
    "id",
    "task_id",
    "step",
    "uid",
    "session",
    "validation",
    "success",
    "reward",
    "advantage",
    "replaced",
    "replayed_into",
    "stop_reason",
    "num_turns",
    "wall_s",
    "format_error",
    "actions",
    "programs",
    "screenshots",
)
BROKEN_SHOWN = 20
Row = list[Any]


def run_document(run: Run, snapshot: Snapshot, *, live: bool) -> dict[str, Any]:
    """Make `api/run`: the run's tasks and steps to choose from. `broken` names the first folders without an episode."""
    tasks = {episode.task_id: episode.instruction for episode in snapshot.episodes}
    jumps = {task_id: _jump(jump, snapshot) for task_id, jump in run.jumps().items()}
    return {
        "name": run.name,
        "live": live,
        "num_episodes": len(snapshot.episodes),
        "num_broken": len(snapshot.broken),
        "broken": [{"id": id, "reason": snapshot.broken[id]} for id in sorted(snapshot.broken)[:BROKEN_SHOWN]],
        "tasks": [
            {"task_id": task_id, "instruction": tasks[task_id], **jumps.get(task_id, {})} for task_id in sorted(tasks)
        ],
        "evaluation": has_evaluation(run),
        "frontier": bool(run.frontier()),
    }


def _jump(jump: Jump, snapshot: Snapshot) -> dict[str, Any]:
    """Describe a task's jump. `first` is its first success, null if that was not recorded."""
    return {"jump": {"step": jump.step, "earlier": jump.earlier, "first": snapshot.index.id_of(jump.first)}}


def episode_rows(snapshot: Snapshot) -> dict[str, Row]:
    """Return the rows of `api/episodes` by id."""
    return {episode.id: _row(episode, snapshot) for episode in snapshot.episodes}


def _row(episode: EpisodeSummary, snapshot: Snapshot) -> Row:
    training = snapshot.training(episode.id)
    derived = {
        "advantage": training.advantage,
        "replaced": training.replaced,
        "replayed_into": list(training.replayed_into),
    }
    return [derived[name] if name in derived else getattr(episode, name) for name in COLUMNS]


def episodes_document(rows: Iterable[Row], cursor: str = "", complete: bool = True) -> dict[str, Any]:
    """Make `api/episodes`. If `complete`, these are all rows, and a reader must drop its others."""
    return {"columns": COLUMNS, "rows": list(rows), "cursor": cursor, "complete": complete}


class EpisodesFeed:
    """Makes `api/episodes` for readers that return with a cursor, and get only changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._origin = secrets.token_hex(4)
        self._snapshot = 0
        self._rows: dict[str, Row] = {}
        self._changed_at: dict[str, int] = {}

    def document(self, snapshot: Snapshot, cursor: str | None) -> dict[str, Any]:
        """Return the rows that are new or changed since `cursor`, or all if the cursor is not this feed's."""
        with self._lock:
            if snapshot.number > self._snapshot:
                self._update(snapshot)
            since = self._number_of(cursor)
            rows = [row for id, row in self._rows.items() if since is None or self._changed_at[id] > since]
            return episodes_document(rows, f"{self._origin}.{self._snapshot}", complete=since is None)

    def _update(self, snapshot: Snapshot) -> None:
        rows = episode_rows(snapshot)
        if self._rows.keys() - rows.keys():
            self._origin = secrets.token_hex(4)  # a cursor cannot report removed rows, so all readers start again
        self._changed_at = {
            id: self._changed_at[id] if self._rows.get(id) == row else snapshot.number for id, row in rows.items()
        }
        self._rows, self._snapshot = rows, snapshot.number

    def _number_of(self, cursor: str | None) -> int | None:
        origin, _, number = (cursor or "").partition(".")
        return int(number) if origin == self._origin and re.fullmatch("[0-9]{1,18}", number) else None


def episode_document(run: Run, snapshot: Snapshot, episode_id: str) -> dict[str, Any]:
    """Make `api/episode/ID`: the recorded content, its files, and its group in training.

    Raises:
        KeyError: there is no such episode.
    """
    episode = snapshot.by_id[episode_id]
    training = snapshot.training(episode_id)
    return {
        **run.episode(episode_id),
        "id": episode_id,
        "folder_files": sorted(os.listdir(run.folder(episode_id))),
        "advantage": training.advantage,
        "replaced": training.replaced,
        "group": [_member(snapshot, *member) for member in snapshot.index.group_of(episode)],
        "replayed_by": training.replayed_by,
        "replayed_into": list(training.replayed_into),
        "replayed_beside": list(training.replayed_beside),
    }


def _member(snapshot: Snapshot, session: int, episode_id: str | None, row: TrainedRow | None) -> dict[str, Any]:
    """Describe a group's member. `reward` is the episode's own; `trained_reward` and `advantage` are the trained row's,
    so the replay's if one replaced it. `id` is null for an episode that was not recorded."""
    episode = snapshot.by_id.get(episode_id) if episode_id is not None else None
    return {
        "id": episode_id,
        "session": session,
        "success": episode.success if episode is not None else None,
        "reward": episode.reward if episode is not None else None,
        "trained_reward": row.reward if row is not None else None,
        "advantage": row.advantage if row is not None else None,
        "replaced": row is not None and row.replaced,
        "added": row is not None and row.added,
        "replay_of": snapshot.index.id_of(row.replay) if row is not None else None,
    }


def tokens_document(run: Run, episode_id: str) -> dict[str, Any]:
    """Make `api/tokens/ID`: the replies token by token, as far as they were recorded.

    Raises:
        KeyError: there is no such episode.
    """
    return {"replies": [asdict(reply) for reply in read_tokens(run.folder(episode_id))]}


def metrics_document(run: Run) -> dict[str, Any]:
    """Make `api/metrics`, in six significant digits, as many as a curve can show."""
    metrics = run.metrics()
    series = {name: [rounded(value) for value in values] for name, values in metrics.series.items()}
    return {"steps": metrics.steps, "series": series}


def rounded(value: float | None) -> float | None:
    """Round a number to six significant digits."""
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")


def frontier_document(run: Run) -> dict[str, Any]:
    """Make `api/frontier`: frontier sampling's estimate of each task; empty if tasks come in veRL's order."""
    tasks = [
        {name: rounded(value) if isinstance(value, float) else value for name, value in asdict(estimate).items()}
        for estimate in run.frontier()
    ]
    return {"tasks": tasks}


def live_document(run: Run) -> dict[str, Any]:
    """Make `api/live`: the pool, and its desktops' screens."""
    return {"time": time.time(), "pool": run.pool(), "running": [_running(episode) for episode in run.running()]}


def _running(episode: RunningEpisode) -> dict[str, Any]:
    last = episode.turns[-1] if episode.turns else {}
    names = ("task_id", "instruction", "step", "session", "started_at", "desktop")
    return {
        "id": episode.id,
        **{name: episode.content.get(name) for name in names},
        "num_turns": len(episode.turns),
        "last_reply": last.get("text", "")[:REPLY_CHARACTERS],
        "last_actions": last.get("actions", []),
        "screenshot": f"shots/{episode.id}/{episode.screenshots[-1]}" if episode.screenshots else None,
    }
