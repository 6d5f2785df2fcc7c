"""This reads an episode's replies token by token: texts, and log-probs of the rollout and of the trainer."""

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
"""Most tokens of an episode: a browser draws each as an element, one reply at a time."""
_MOST_CHARACTERS = 100
"""Most characters of a token's text."""
_MOST_TRAININGS = 20
"""Most trainings, the newest ones, since a success may be replayed again and again."""


@dataclass(frozen=True)
class Trained:
    """This is a training step that trained on a reply, in its own episode or in a replay."""

    step: int
    log_probs: list[float | None]
    """Log-probs of the policy before the step's update."""


@dataclass(frozen=True)
class ReplyTokens:
    """This is one reply. Values that were not recorded or are invalid are None."""

    num_tokens: int
    texts: list[str] | None
    log_probs: list[float | None] | None
    """Log-probs of the rollout engine, when it wrote the reply."""
    trained: list[Trained]
    """The trainings on this reply, the oldest first."""


def read_tokens(folder: Path) -> list[ReplyTokens]:
    """Return the replies of an episode's folder, in order, without missing or broken parts."""
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
    """Return a line's step and log-probs; the step is None if the line is incomplete or of other tokens."""
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
