"""Compares two evaluations, paired by task. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from arpo_verl.errors import ConfigError
from arpo_verl.tools.evaluation.paired import Paired, pair
from arpo_verl.tools.evaluation.results import Evaluated
from arpo_verl.tools.evaluation.statistics import scores_by_task
from arpo_verl.tools.evaluation.tables import percent

_NAMED = 3


@dataclass(frozen=True)
class Pairing(Paired):
    """Pairs two evaluations by the tasks that both have results of, within one turn budget: second minus first."""

    budget: int


@dataclass(frozen=True)
class Comparison:
    """The comparison of two evaluations; `str` makes a text for people."""

    pairings: tuple[Pairing, ...]
    """The pairings, one for each turn budget."""
    left_out: tuple[str, ...]
    """What only one of them has, in words for people."""
    settings: tuple[str, ...]
    """Names of the settings that differ."""

    def __str__(self) -> str:
        lines = ["Left out, since only one of the two has them:", *(f"  {one}" for one in self.left_out)]
        lines = lines if self.left_out else []
        if self.settings:
            lines.append(f"Settings that differ: {', '.join(self.settings)}")
        return "\n".join([*lines, *map(_describe, self.pairings)])


def compare(first: Evaluated, second: Evaluated) -> Comparison:
    """Pair two evaluations by task, within each turn budget that both have.

    Raises:
        ConfigError: they have no task in common within one budget.
    """
    budgets = [{result.budget for result in one.results} for one in (first, second)]
    pairings, left_out = [], []
    for budget, number in [(b, 1) for b in budgets[0] - budgets[1]] + [(b, 2) for b in budgets[1] - budgets[0]]:
        left_out.append(f"at most {budget} turns: {_ORDINALS[number - 1]} evaluation alone")
    for budget in sorted(budgets[0] & budgets[1]):
        scores = [scores_by_task(r for r in one.results if r.budget == budget) for one in (first, second)]
        both = [task_id for task_id in scores[0] if task_id in scores[1]]
        left_out += [
            f"at most {budget} turns: {_listed([id for id in its if id not in both])} of {_ORDINALS[number]} alone"
            for number, its in enumerate(scores)
            if len(its) > len(both)
        ]
        if both:
            paired = pair(*([fmean(its[task_id]) for task_id in both] for its in scores))
            pairings.append(Pairing(**vars(paired), budget=budget))
    if not pairings:
        what = "; ".join(left_out) or "neither has a result"
        raise ConfigError(f"the two evaluations have no results of the same task within the same budget: {what}")
    names = sorted({*first.settings, *second.settings})
    differing = tuple(name for name in names if first.settings.get(name) != second.settings.get(name))
    return Comparison(tuple(pairings), tuple(left_out), differing)


_ORDINALS = ("the first", "the second")


def _listed(task_ids: Sequence[str]) -> str:
    more = ", ..." if len(task_ids) > _NAMED else ""
    return f"{len(task_ids)} tasks ({', '.join(task_ids[:_NAMED])}{more})"


def _describe(pairing: Pairing) -> str:
    low_high = "no interval for one task"
    if pairing.interval is not None:
        low_high = f"95% interval {_points(pairing.interval[0])} to {_points(pairing.interval[1])}"
    verdict = "no clear difference"
    if pairing.told_apart:
        verdict = f"the second is {'better' if pairing.difference > 0 else 'worse'}"
    return (
        f"At most {pairing.budget} turns, {pairing.tasks} tasks of both: {percent(pairing.first)} and "
        f"{percent(pairing.second)}, {_points(pairing.difference)} points ({low_high}; p = {pairing.p_value:.3f}); "
        f"the second is better on {pairing.better}, worse on {pairing.worse}: {verdict}."
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
