"""An episode's replies token by token, read from its folder: texts, and log-probs of the rollout and of the trainer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo_verl.records.json_files import as_number, parse_json
from arpo_verl.records.layout import LOG_PROBS_FILE, TOKENS_FILE
from arpo_verl.untrusted import MOST_JSON_BYTES, read_regular

_MOST_TOKENS = 50_000
"""Of an episode: a browser draws each as an element, those of one reply at a time."""
_MOST_CHARACTERS = 100
"""Of a token's text."""
_MOST_TRAININGS = 20
"""The newest; a success may be replayed again and again."""


@dataclass(frozen=True)
class Trained:
    """A training step that trained on a reply, of its episode or as a part of a replay."""

    step: int
    log_probs: list[float | None]
    """Of the policy that the step was about to update."""


@dataclass(frozen=True)
class ReplyTokens:
    """One reply. What was not recorded, or is something else, is None."""

    num_tokens: int
    texts: list[str] | None
    log_probs: list[float | None] | None
    """Of the rollout engine, when it wrote the reply."""
    trained: list[Trained]
    """Oldest first."""


def read_tokens(folder: Path) -> list[ReplyTokens]:
    """The replies of an episode's folder, in order; what is missing or broken in it is left out."""
    replies = list(_replies(_read(folder / TOKENS_FILE, parse_json)))
    ends = list(itertools.accumulate((reply.num_tokens for reply in replies), initial=0))
    if ends[-1] > _MOST_TOKENS:
        return []
    for line in _read(folder / LOG_PROBS_FILE, bytes.splitlines)[-_MOST_TRAININGS:]:
        step, values = _trained(line, ends[-1])
        for reply, start, end in zip(replies, ends, ends[1:], strict=False):
            if step is not None:
                reply.trained.append(Trained(step, values[start:end]))
    return replies


def _read(path: Path, parse: Any) -> list[Any]:
    try:
        content = parse(read_regular(path, MOST_JSON_BYTES))
    except (OSError, ValueError):
        return []
    return content if isinstance(content, list) else []


def _replies(entries: list[Any]) -> Iterator[ReplyTokens]:
    for entry in entries:
        values = entry if isinstance(entry, dict) else {}
        ids = values.get("token_ids")
        count = len(ids) if isinstance(ids, list) else 0
        texts, log_probs = (_list_of(values.get(name), count) for name in ("texts", "log_probs"))
        is_text = texts is not None and all(isinstance(text, str) for text in texts)
        yield ReplyTokens(
            count,
            [text[:_MOST_CHARACTERS] for text in texts or ()] if is_text else None,
            None if log_probs is None else [as_number(value) for value in log_probs],
            [],
        )


def _trained(line: bytes, num_tokens: int) -> tuple[int | None, list[float | None]]:
    """A line's step and log-probs; no step where it is torn or of other tokens."""
    try:
        content = parse_json(line)
    except ValueError:
        return None, []
    fields = content if isinstance(content, dict) else {}
    step, values = fields.get("step"), _list_of(fields.get("log_probs"), num_tokens)
    if type(step) is not int or values is None:
        return None, []
    return step, [as_number(value) for value in values]


def _list_of(value: object, length: int) -> list[Any] | None:
    return value if isinstance(value, list) and len(value) == length else None
