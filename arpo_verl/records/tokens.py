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
class ReplyTokens:
    """One reply. What was not recorded, or is something else, is None."""

    num_tokens: int
    texts: list[str] | None
    log_probs: list[float | None] | None
    """Of the rollout engine, when it wrote the reply."""


@dataclass(frozen=True)
class TrainedTokens:
    """A training step that trained on the episode, as itself or as a replay."""

    step: int
    log_probs: list[list[float | None]]
    """A list a reply: those of the policy that the step was about to update."""


@dataclass(frozen=True)
class EpisodeTokens:
    """The replies in order, and the trainings, oldest first. None of either where they were not recorded."""

    replies: list[ReplyTokens]
    trained: list[TrainedTokens]


def read_tokens(folder: Path) -> EpisodeTokens:
    """Read an episode's folder; what is missing or broken in it is left out."""
    replies = list(_replies(_read(folder / TOKENS_FILE, parse_json)))
    if sum(reply.num_tokens for reply in replies) > _MOST_TOKENS:
        return EpisodeTokens([], [])
    lines = _read(folder / LOG_PROBS_FILE, bytes.splitlines)
    trained = (_trained(line, replies) for line in lines[-_MOST_TRAININGS:])
    return EpisodeTokens(replies, [one for one in trained if one is not None])


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
        texts, log_probs = values.get("texts"), values.get("log_probs")
        is_text = _is_list(texts, count) and all(isinstance(text, str) for text in texts)
        yield ReplyTokens(
            count,
            [text[:_MOST_CHARACTERS] for text in texts] if is_text else None,
            [as_number(value) for value in log_probs] if _is_list(log_probs, count) else None,
        )


def _trained(line: bytes, replies: list[ReplyTokens]) -> TrainedTokens | None:
    try:
        content = parse_json(line)
    except ValueError:  # torn
        return None
    values, step = (content.get(name) for name in ("log_probs", "step")) if isinstance(content, dict) else (None, None)
    ends = list(itertools.accumulate((reply.num_tokens for reply in replies), initial=0))
    if type(step) is not int or not _is_list(values, ends[-1]):
        return None
    numbers = [as_number(value) for value in values]
    return TrainedTokens(step, [numbers[start:end] for start, end in itertools.pairwise(ends)])


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length
