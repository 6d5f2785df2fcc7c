"""Finds the tasks worth training on, and plays each only as often as necessary. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from arpo_verl.tools.evaluation.keep_rule import KeepRule
from arpo_verl.tools.evaluation.results import Evaluated, FailedTrial, Result, Trial
from arpo_verl.tools.evaluation.statistics import SOLVED
from arpo_verl.tools.evaluation.task_rates import TaskRates

MOST_FAULTS = 3
"""How many runs of a task lost to infrastructure failures we replace, under new numbers, before we give up."""


class FilterRuns:
    """Plays tasks until each one's fate is settled: either further runs cannot change it, or, if `error` allows
    it, they probably will not. Tasks without a running episode come first.

    Args:
        task_ids: the tasks to play.
        max_steps: most replies.
        error: a task is settled if all `rule.runs` runs would decide otherwise with at most this probability; 0 waits
            for certainty.
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
        """The largest possible number of trials; tasks that are settled early make it smaller."""
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
        """Return how many runs may still begin."""
        return self._rule.runs + min(self._faults[task_id], MOST_FAULTS) - self._begun[task_id]


class Fate(StrEnum):
    """The result of the filter for a task."""

    KEPT = "kept"
    TOO_FEW = "too few successes"
    TOO_MANY = "too many successes"
    UNSETTLED = "unsettled, since infrastructure failed its runs"
    DOING_NOTHING = "doing nothing solves it on this desktop"
    NO_VERDICT = "nothing is known of it, since infrastructure failed the episode that does nothing"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True)
class FilteredTask:
    """A task, and why it is on the list or not."""

    task_id: str
    fate: Fate
    solved: int = 0
    runs: int = 0
    chance_kept: float = 0.0
    """Probability that all runs would keep it."""

    @property
    def doubt(self) -> float:
        """The probability that all runs would decide otherwise; 0 if that is certain, or the task was not played."""
        return min(self.chance_kept, 1 - self.chance_kept)


def count_runs(evaluated: Evaluated, rule: KeepRule, max_steps: int) -> TaskRates:
    """Count the first `rule.runs` runs of each task at this budget."""
    rates = TaskRates()
    for result in evaluated.results:
        if result.budget == max_steps and rates.counts(result.task_id)[1] < rule.runs:
            rates.tell(result.task_id, _solved(result))
    return rates


def decide(
    rates: TaskRates, task_ids: Iterable[str], faults: Iterable[FailedTrial], rule: KeepRule, error: float
) -> list[FilteredTask]:
    """Return the likelier fate of each played task, by all runs. A task whose lost runs were all replaced was settled,
    even if later results of other tasks have increased the doubt.
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
    """The expected shares of the first groups in a training on some tasks, in [0, 1]."""

    informative: float
    """Groups with both successes and failures: GRPO has an advantage for each rollout."""
    with_replay: float
    """Informative groups, and groups without a success if the store has one of the task: replay adds it."""
    all_failed: float
    all_solved: float


def outlook(rates: TaskRates, task_ids: Sequence[str], group_size: int) -> Outlook:
    """Estimate the outlook for the played policy, with every task drawn equally often; needs at least one task."""
    failed = fmean(rates.mean_power(task_id, group_size, failing=True) for task_id in task_ids)
    solved = fmean(rates.mean_power(task_id, group_size) for task_id in task_ids)
    return Outlook(1 - failed - solved, 1 - solved, failed, solved)


def _solved(result: Result) -> bool:
    return result.success >= SOLVED
