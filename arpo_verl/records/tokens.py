"""Reads an episode's replies token by token: texts, and log-probs of the rollout and of the trainer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import msgspec

from arpo_verl.lib.untrusted import MOST_JSON_BYTES, read_regular
from arpo_verl.records.json_files import Number, T, read_json, read_line
from arpo_verl.records.layout import LOG_PROBS_FILE, TOKENS_FILE

_MOST_TOKENS = 50_000
"""Most tokens of an episode: a browser draws each as an element, one reply at a time."""
_MOST_CHARACTERS = 100
"""Most characters of a token's text."""
_MOST_TRAININGS = 20
"""Most trainings, the newest ones, since a success may be replayed again and again."""


@dataclass(frozen=True)
class Trained:
    """A training step that trained on a reply, in its own episode or in a replay."""

    step: int
    log_probs: list[Number | None]
    """Log-probs of the policy before the step's update."""


@dataclass(frozen=True)
class ReplyTokens:
    """One reply. Values that were not recorded or are invalid are None."""

    num_tokens: int
    texts: list[str] | None
    log_probs: list[float | None] | None
    """Log-probs of the rollout engine, when it wrote the reply."""
    trained: list[Trained]
    """The trainings on this reply, the oldest first."""


class _Reply(msgspec.Struct):
    """A reply in `tokens.json`."""

    token_ids: list[int]
    texts: list[str] | None = None
    log_probs: list[Number | None] | None = None


def read_tokens(folder: Path) -> list[ReplyTokens]:
    """Return the replies of an episode's folder, in order; none if a file is missing or broken."""
    try:
        replies = [_reply(one) for one in read_json(folder / TOKENS_FILE, list[_Reply])]
    except (OSError, ValueError):
        return []
    ends = list(itertools.accumulate((reply.num_tokens for reply in replies), initial=0))
    if ends[-1] > _MOST_TOKENS:
        return []
    for trained in _trainings(folder / LOG_PROBS_FILE):
        if len(trained.log_probs) == ends[-1]:
            for reply, start, end in zip(replies, ends, ends[1:], strict=False):
                reply.trained.append(Trained(trained.step, trained.log_probs[start:end]))
    return replies


def _trainings(file: Path) -> list[Trained]:
    try:
        lines = read_regular(file, MOST_JSON_BYTES).splitlines()[-_MOST_TRAININGS:]
    except OSError:
        return []
    return [line for line in (read_line(line, Trained) for line in lines) if line is not None]


def _reply(reply: _Reply) -> ReplyTokens:
    count = len(reply.token_ids)
    texts = _if_long(reply.texts, count)
    cut = None if texts is None else [text[:_MOST_CHARACTERS] for text in texts]
    return ReplyTokens(count, cut, _if_long(reply.log_probs, count), [])


def _if_long(values: list[T] | None, length: int) -> list[T] | None:
    return values if values is not None and len(values) == length else None
