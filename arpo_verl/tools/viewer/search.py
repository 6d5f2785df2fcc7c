"""Searches the agent's replies and typed text, instructions and verdicts, with an SQLite index made on first use.

The index is a scratch file that is removed with the process. A search first indexes what is new, for at most
`INDEX_S`, then shows what it finds so far and how much is indexed: the page asks again until that is all.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from arpo_verl.lib.files import ScratchFolder
from arpo_verl.records.run import Run, Snapshot
from arpo_verl.records.summaries import EpisodeSummary

FIELDS = ("instruction", "reply", "thought", "typed", "verdict")
_MOST_WORDS, _MOST_CHARACTERS = 12, 200
"""Most words and characters of a query."""
_MOST_TEXT = 100_000
"""Most characters of an episode's field that we index."""
_MOST_HITS, _AROUND = 100, 40
"""Most episodes whose hits one request gets, and characters before a hit."""
_VERDICT = ("metric", "result", "expected", "returned")
INDEX_S = 2.0
"""Seconds for which a search indexes before it answers: thousands of episodes."""


class SearchIndex:
    """Indexes the words of a run's episodes. Thread-safe."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._scratch: ScratchFolder | None = None
        self._database: sqlite3.Connection | None = None
        self._indexed: dict[str, tuple[int, EpisodeSummary]] = {}
        """Id -> its row, and the indexed episode: if the record is rewritten, its summary is another object."""

    def document(self, query: str) -> dict[str, Any]:
        """Make `api/search`: the ids of episodes that have, for each word of the query, a word that begins with it."""
        snapshot = self._run.snapshot()
        words = _words(query)
        with self._lock:
            self._index(snapshot)
            found = self._find(words) if words else []
            current = {id: row for id, row in found if self._indexed.get(id, (None,))[0] == row}
            indexed = sum(id in self._indexed for id in snapshot.by_id)
        ids = [id for id in current if id in snapshot.by_id]
        return {"query": query, "ids": ids, "indexed": indexed, "total": len(snapshot.by_id)}

    def hits_document(self, query: str, ids: Sequence[str]) -> dict[str, Any]:
        """Make `api/hits`: each episode's first turn with most of the query's words, from 1, and the text around the
        first of them; `turn` is null if no turn has them."""
        words = _words(query)
        return {"hits": {id: hit for id in ids[:_MOST_HITS] if (hit := self._hit(id, words)) is not None}}

    def _hit(self, episode_id: str, words: list[str]) -> dict[str, Any] | None:
        try:
            content = self._run.episode(episode_id)
        except KeyError:
            return None
        pattern = re.compile("|".join(rf"\b{re.escape(word)}" for word in words) or r"(?!)", re.IGNORECASE)
        turns = [" ".join(filter(None, _turn_texts(turn)))[:_MOST_TEXT] for turn in content.get("turns", [])]
        calls = [" ".join(_texts(content.get("evaluator", []), *_VERDICT))[:_MOST_TEXT]]
        found = [{match[0].lower() for match in pattern.finditer(text)} for text in [*turns, *calls]]
        best = max(range(len(found)), key=lambda number: len(found[number]))
        match = pattern.search([*turns, *calls][best])
        if match is None:
            return None
        start = max(0, match.start() - _AROUND)
        text = [*turns, *calls][best][start : match.end() + 2 * _AROUND]
        return {"turn": best + 1 if best < len(turns) else None, "text": f"{'…' if start else ''}{text}"}

    def _find(self, words: list[str]) -> list[tuple[str, int]]:
        # Quotes keep words from being operators of the query language.
        match = " ".join(f'"{word}"*' for word in words)
        sql = "SELECT id, number FROM episodes JOIN words ON words.rowid = number WHERE words MATCH ?"
        return list(self._connection().execute(sql, (match,)))

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            self._scratch = ScratchFolder(Path(tempfile.gettempdir()), "arpo_verl-search-")
            database = sqlite3.connect(self._scratch.path / "index.sqlite", check_same_thread=False)
            database.executescript(
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
                "CREATE TABLE episodes (number INTEGER PRIMARY KEY, id TEXT);"
                f"CREATE VIRTUAL TABLE words USING fts5({', '.join(FIELDS)}, content='');"
            )
            self._database = database
        return self._database

    def _index(self, snapshot: Snapshot) -> None:
        """Index episodes that are new since the last search."""
        database, until = self._connection(), time.monotonic() + INDEX_S
        for episode in snapshot.episodes:
            if self._indexed.get(episode.id, (0, None))[1] is not episode:
                number = database.execute("INSERT INTO episodes (id) VALUES (?)", (_clean(episode.id),)).lastrowid
                places = ", ".join("?" * len(FIELDS))
                database.execute(
                    f"INSERT INTO words (rowid, {', '.join(FIELDS)}) VALUES (?, {places})",  # noqa: S608
                    (number, *self._texts(episode)),
                )
                self._indexed[episode.id] = number or 0, episode
                if time.monotonic() > until:
                    break
        database.commit()

    def _texts(self, episode: EpisodeSummary) -> list[str]:
        try:
            content = self._run.episode(episode.id)
        except KeyError:  # removed meanwhile
            content = {}
        fields = _fields(episode, content)
        return [_clean("\n".join(islice(fields[name], 10_000))[:_MOST_TEXT]) for name in FIELDS]


def _fields(episode: EpisodeSummary, content: Mapping[str, Any]) -> dict[str, Iterator[str]]:
    turns = content.get("turns", [])
    actions = [action for turn in turns for action in turn.get("actions", [])]
    return {
        "instruction": iter((episode.task_id, episode.instruction)),
        "reply": _texts(turns, "text"),
        "thought": _texts(turns, "thought"),
        "typed": _texts(actions, "text", "answer"),
        "verdict": _texts(content.get("evaluator", []), *_VERDICT),
    }


def _turn_texts(turn: dict[str, Any]) -> Iterator[str]:
    yield from _texts([turn], "text", "thought")
    yield from _texts(turn.get("actions", []), "text", "answer")


def _words(query: str) -> list[str]:
    return re.findall(r"\w+", query[:_MOST_CHARACTERS])[:_MOST_WORDS]


def _texts(objects: list[dict[str, Any]], *names: str) -> Iterator[str]:
    return (one[name] for one in objects for name in names if one.get(name) is not None)


def _clean(text: str) -> str:
    """Return the text for SQLite: a lone surrogate, which JSON may contain, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
