"""The table of `keys.py` as Markdown, for docs/reference/migration.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from arpo_verl.tools.migration.keys import KEYS, Key

HEAD = "| theirs | here | |\n|---|---|---|\n"


def key_table() -> str:
    """Every option of theirs; neighbours that are dropped for the same reason share a row."""
    rows = groupby(KEYS, key=lambda key: (key.note, key.name if key.to else key.name.split(".")[:2]))
    return HEAD + "\n".join(_row(list(keys)) for _, keys in rows)


def _row(keys: list[Key]) -> str:
    first = keys[0]
    here = ", ".join(f"`{option}`" for option in _shorten(first.to)) or "–"
    return f"| {', '.join(_names(key.name for key in keys))} | {here} | {first.note} |"


def _names(names: Iterable[str]) -> Iterator[str]:
    section = ""
    for name in names:
        parent, _, last = name.rpartition(".")
        yield f"`{name}`" if parent != section else f"`{last}`"
        section = parent


def _shorten(options: Iterable[str]) -> Iterator[str]:
    """`actor_rollout_ref.` stands before most."""
    for option in options:
        yield option.replace("actor_rollout_ref.", "….")
