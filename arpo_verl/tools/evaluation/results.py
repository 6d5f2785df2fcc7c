"""The trials and results of an evaluation. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arpo_verl.types import StopReason


@dataclass(frozen=True)
class Trial:
    """One episode to play."""

    task_id: str
    run: int
    """Its number among the task's trials, from 0."""
    max_steps: int
    """Most replies."""


@dataclass(frozen=True)
class Result:
    """A trial's result within a turn budget; a trial has one for each budget that its episode covers."""

    task_id: str
    domain: str
    """OSWorld's domain, from the tasks' index, or the name of the file's folder; "" without either."""
    run: int
    budget: int
    """Most replies that count."""
    success: float
    """The evaluator's score, in [0, 1]."""
    turns: int
    """Replies within the budget."""
    stop_reason: StopReason
    episode_id: str
    """`step_000000/<folder>`: the place of its record."""

    @property
    def format_error(self) -> bool:
        return self.stop_reason is StopReason.PARSE_ERROR


@dataclass(frozen=True)
class FailedTrial:
    """All attempts of this trial were lost to infrastructure failures: it has no score, and is repeated on resume."""

    task_id: str
    run: int
    max_steps: int
    """The trial's largest number of replies."""
    error: str
    """The name of the error's class."""
    message: str


@dataclass(frozen=True)
class Evaluated:
    """All that a folder has of an evaluation, even while it runs."""

    results: tuple[Result, ...]
    """Results in the order of the tasks, then by budget, then by run."""
    faults: tuple[FailedTrial, ...]
    """Failed trials without a result."""
    settings: Mapping[str, Any]
    """Its settings, from `evaluation.json`."""
    domains: Mapping[str, str]
    """Every task that it may play, in order, with its domain."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of each task's content."""
