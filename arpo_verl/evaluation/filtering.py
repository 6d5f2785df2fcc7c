"""Which tasks are worth training on, found by playing each no oftener than it takes. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from arpo_verl.evaluation.keep_rule import KeepRule
from arpo_verl.evaluation.results import Evaluated, FailedTrial, Result, Trial
from arpo_verl.evaluation.statistics import SOLVED
from arpo_verl.evaluation.task_rates import TaskRates

MOST_FAULTS = 3
"""Runs of a task that infrastructure may fail, each played anew under another number, before it is left as it is."""


class FilterRuns:
    """Plays tasks until each one's fate is settled: by what it has whatever else came, or, where `error` allows for it,
    by what is expected of the rest. A task of which nothing runs comes before one that is being played.

    Args:
        task_ids: what to play.
        max_steps: replies at most.
        error: a task is settled where the probability that all `rule.runs` runs decide otherwise is at most this; 0
            waits for certainty.
    """

    def __init__(self, task_ids: Sequence[str], rule: KeepRule, max_steps: int, error: float):
        self._rule = rule
        self._max_steps = max_steps
        self._error = error
        self._rates = TaskRates()
        self._open = list(task_ids)
        self._begun: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()

    @property
    def expected(self) -> int:
        """As many as there could be yet; tasks that are settled before make it fewer."""
        return sum(self._begun.values()) + sum(map(self._left, self._open))

    def next_trials(self, most: int) -> list[Trial]:
        self._open = [task_id for task_id in self._open if not self._is_settled(task_id)]
        trials: list[Trial] = []
        while len(trials) < most:
            waiting = [task_id for task_id in self._open if self._left(task_id) > 0]
            if not waiting:
                break
            task_id = min(waiting, key=lambda one: (self._running[one], self._begun[one]))
            trials.append(Trial(task_id, self._begun[task_id], self._max_steps))
            self._begun[task_id] += 1
            self._running[task_id] += 1
        return trials

    def finished(self, trial: Trial, outcome: tuple[Result, ...] | FailedTrial) -> None:
        self._running[trial.task_id] -= 1
        if isinstance(outcome, FailedTrial):
            self._faults[trial.task_id] += 1
            return
        self._rates.tell(trial.task_id, _solved(outcome[-1]))

    def _is_settled(self, task_id: str) -> bool:
        return abs(self._rates.chance_kept(task_id, self._rule) - 0.5) >= 0.5 - self._error

    def _left(self, task_id: str) -> int:
        """Runs that may still be begun."""
        return self._rule.runs + min(self._faults[task_id], MOST_FAULTS) - self._begun[task_id]


class Fate(StrEnum):
    """What becomes of a task."""

    KEPT = "kept"
    TOO_FEW = "too few successes"
    TOO_MANY = "too many successes"
    UNSETTLED = "unsettled, since infrastructure failed its runs"
    DOING_NOTHING = "doing nothing solves it on this desktop"
    NOT_EVALUATED = "nothing is known of it, since infrastructure failed the episode that does nothing"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True)
class FilteredTask:
    """A task and why it is on the list or not."""

    task_id: str
    fate: Fate
    solved: int = 0
    runs: int = 0
    chance_kept: float = 0.0
    """The probability that all runs would keep it."""

    @property
    def doubt(self) -> float:
        """The probability that all runs would decide otherwise; 0 where that is certain, and for what is not played."""
        return min(self.chance_kept, 1 - self.chance_kept)


def count_runs(evaluated: Evaluated, rule: KeepRule, max_steps: int) -> TaskRates:
    """What is known of the rates from the first `rule.runs` runs of each task at this budget."""
    rates = TaskRates()
    for result in evaluated.results:
        if result.budget == max_steps and rates.counts(result.task_id)[1] < rule.runs:
            rates.tell(result.task_id, _solved(result))
    return rates


def decide(
    rates: TaskRates, task_ids: Iterable[str], faults: Iterable[FailedTrial], rule: KeepRule, error: float
) -> list[FilteredTask]:
    """The fate of each task that was played: the likelier one, by all that was seen. One of which infrastructure failed
    no more runs than were played anew was settled, though the doubt may have grown since by what others came to.
    """
    failed = Counter(fault.task_id for fault in faults)
    return [_decide(task_id, rates, rule, error if failed[task_id] > MOST_FAULTS else 0.5) for task_id in task_ids]


def _decide(task_id: str, rates: TaskRates, rule: KeepRule, most_doubt: float) -> FilteredTask:
    solved, runs = rates.counts(task_id)
    chance = rates.chance_kept(task_id, rule)
    task = FilteredTask(task_id, Fate.KEPT, solved, runs, chance)
    if not runs or task.doubt > most_doubt:
        return dataclasses.replace(task, fate=Fate.UNSETTLED)
    if chance >= 0.5:
        return task
    many = 2 * solved * rule.runs >= (rule.low + rule.high) * runs
    return dataclasses.replace(task, fate=Fate.TOO_MANY if many else Fate.TOO_FEW)


@dataclass(frozen=True)
class Outlook:
    """What training on some tasks will see at first, in groups of one task: shares of the groups, in [0, 1]."""

    informative: float
    """Some of the group solve the task and some do not: GRPO has an advantage for each."""
    with_replay: float
    """Those, and the groups that all fail, where a success of the task is stored: replay puts it in."""
    all_failed: float
    all_solved: float


def outlook(rates: TaskRates, task_ids: Sequence[str], group_size: int) -> Outlook:
    """What is expected of the policy that was played, every task drawn equally often; `task_ids` are at least one."""
    failed = fmean(rates.mean_power(task_id, group_size, failing=True) for task_id in task_ids)
    solved = fmean(rates.mean_power(task_id, group_size) for task_id in task_ids)
    return Outlook(1 - failed - solved, 1 - solved, failed, solved)


def _solved(result: Result) -> bool:
    return result.success >= SOLVED
