"""What an evaluation plays and what it gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arpo_verl.types import StopReason


@dataclass(frozen=True)
class Trial:
    """One episode to be played."""

    task_id: str
    run: int
    """Its number among the task's, from 0."""
    max_steps: int
    """Replies at most."""


@dataclass(frozen=True)
class Result:
    """What a trial came to within a turn budget; a trial has one for each budget that was read off its episode."""

    task_id: str
    domain: str
    """OSWorld's, as the index of the tasks groups them, or the name of the file's folder; "" where neither says."""
    run: int
    budget: int
    """The most replies that count."""
    success: float
    """The evaluator's score, in [0, 1]."""
    turns: int
    """Replies within the budget."""
    stop_reason: StopReason
    episode_id: str
    """`step_000000/<folder>`: where it is recorded."""

    @property
    def format_error(self) -> bool:
        return self.stop_reason is StopReason.PARSE_ERROR


@dataclass(frozen=True)
class FailedTrial:
    """A trial that infrastructure failed, after all attempts: never scored, and played again when the run goes on."""

    task_id: str
    run: int
    max_steps: int
    """The trial's."""
    error: str
    """Name of the error's class."""
    message: str


@dataclass(frozen=True)
class Evaluated:
    """All that a folder holds of an evaluation, also while it goes on."""

    results: tuple[Result, ...]
    """By task in the order of the tasks, then by budget, then by run."""
    faults: tuple[FailedTrial, ...]
    """Those of trials that have no result."""
    settings: Mapping[str, Any]
    """What it was made with, as `evaluation.json` has it."""
    domains: Mapping[str, str]
    """Every task that it may play, in their order, and its domain."""
