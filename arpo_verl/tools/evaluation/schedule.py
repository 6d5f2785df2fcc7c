"""A scheduler chooses the next trials while results come in, so it may use them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from arpo_verl.tools.evaluation.results import FailedTrial, Result, Trial


class Scheduler(Protocol):
    """Chooses what to play; one thread calls it.

    A trial that is on disk from an earlier start is not played again: its results count at once. So a scheduler needs
    no memory of its own. Outcomes come in the order in which episodes end, which differs between runs.
    """

    @property
    def expected(self) -> int:
        """The number of trials of the whole run, as far as it is known now, for the remaining time."""

    def next_trials(self, most: int) -> list[Trial]:
        """Return at most `most` (1 or more) trials to begin now, each only once.

        After an empty list, we ask again after the next outcome; if nothing runs, the evaluation is over.
        """

    def finished(self, trial: Trial, outcome: tuple[Result, ...] | FailedTrial) -> None:
        """Take a trial's outcome: a result for each turn budget that its episode covers, with its own, or a failure."""


class EachRun:
    """Plays each task equally often, at the largest turn budget, and again with budgets that it does not cover.

    It plays all tasks once before it repeats one, so that an interrupted evaluation has results for every task.

    Args:
        task_ids: the tasks to play.
        runs: number of runs of each.
        budgets: most replies, one number or several.
    """

    def __init__(self, task_ids: Sequence[str], runs: int, budgets: Sequence[int]):
        self._budgets = sorted(set(budgets))
        largest = self._budgets[-1]
        self._waiting = deque(Trial(task_id, run, largest) for run in range(runs) for task_id in task_ids)
        self.expected = len(self._waiting)

    def next_trials(self, most: int) -> list[Trial]:
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def finished(self, trial: Trial, outcome: tuple[Result, ...] | FailedTrial) -> None:
        if isinstance(outcome, FailedTrial) or trial.max_steps != self._budgets[-1]:
            return
        covered = {result.budget for result in outcome}
        missing = [Trial(trial.task_id, trial.run, budget) for budget in self._budgets if budget not in covered]
        self._waiting.extend(missing)
        self.expected += len(missing)
