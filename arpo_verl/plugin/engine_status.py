"""What the parts of a run tell each other about its rollout engines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ray.exceptions import ActorUnavailableError, NodeDiedError, OutOfMemoryError, RayActorError, RayTaskError

_CHARACTERS = 1000
"""Of an error, in a message."""


@dataclass(frozen=True)
class LostEngine:
    """An engine that gets no more requests."""

    server_id: str
    since: float
    """Unix time at which it was found."""
    reason: str


@dataclass(frozen=True)
class EngineStatus:
    """What the router knows of all engines."""

    lost: tuple[LostEngine, ...]
    serving: int
    """Engines that get requests."""
    open_calls: Mapping[str, int]
    """By engine, the calls that it has not ended."""
    ended_calls: Mapping[str, int]
    """By engine, the calls that it has ended in any way."""
    retried: int
    """Calls so far that one engine failed and another answered."""


def is_death(error: BaseException) -> bool:
    """Whether an actor's call raised this because the actor's process is gone."""
    passing = isinstance(error, (ActorUnavailableError, RayTaskError))  # the second: raised in the actor, which lives
    return isinstance(error, (RayActorError, NodeDiedError, OutOfMemoryError)) and not passing


def in_words(error: BaseException) -> str:
    """The error on one line, shortened, without the colours and underlined code of Ray's messages."""
    plain = re.sub(r"\x1b\[[\d;]*m|\^{2,}", "", str(error))
    text = f"{type(error).__name__}: {' '.join(plain.split())}"
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS // 2]} ... {text[-_CHARACTERS // 2 :]}"
