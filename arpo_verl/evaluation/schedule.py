"""What is played next: asked for while results come in, so that they may decide. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from arpo_verl.evaluation.results import FailedTrial, Result, Trial


class Scheduler(Protocol):
    """Says what is played. Called from one thread.

    A trial that an earlier start has on disk is not played again: its results count at once, as if it had been. So
    a scheduler needs no memory of its own; but outcomes come in the order in which episodes end, which no two runs
    share.
    """

    @property
    def expected(self) -> int:
        """Trials of the whole run, finished ones among them, as far as is known now: for the remaining time."""

    def next_trials(self, most: int) -> list[Trial]:
        """At most `most` (1 or more) trials to begin now, each given once.

        None: asked again after the next outcome; where nothing runs, the evaluation is over.
        """

    def finished(self, trial: Trial, outcome: tuple[Result, ...] | FailedTrial) -> None:
        """What a trial came to: a result for each turn budget that its episode covers, its own among them."""


class EachRun:
    """Each task equally often, at the largest turn budget; a smaller one that no episode covers is played apart.

    Runs go round: an evaluation that is broken off has seen every task.

    Args:
        task_ids: what to play.
        runs: of each.
        budgets: replies at most, one or several.
    """

    def __init__(self, task_ids: Sequence[str], runs: int, budgets: Sequence[int]):
        self._budgets = sorted(set(budgets))
        largest = self._budgets[-1]
        self._waiting = deque(Trial(task_id, run, largest) for run in range(runs) for task_id in task_ids)
        self.expected = len(self._waiting)
        self.played_apart = 0
        """Trials of a smaller budget alone."""

    def next_trials(self, most: int) -> list[Trial]:
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def finished(self, trial: Trial, outcome: tuple[Result, ...] | FailedTrial) -> None:
        if isinstance(outcome, FailedTrial) or trial.max_steps != self._budgets[-1]:
            return
        told = {result.budget for result in outcome}
        apart = [Trial(trial.task_id, trial.run, budget) for budget in self._budgets if budget not in told]
        self._waiting.extend(apart)
        self.expected += len(apart)
        self.played_apart += len(apart)
