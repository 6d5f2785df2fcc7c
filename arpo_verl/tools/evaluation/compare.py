"""Compares two evaluations, paired by task. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from arpo_verl.errors import ConfigError
from arpo_verl.tools.evaluation.paired import Paired, pair
from arpo_verl.tools.evaluation.results import Evaluated
from arpo_verl.tools.evaluation.statistics import scores_by_task
from arpo_verl.tools.evaluation.tables import percent

_NAMED = 3
_ORDINALS = ("the first", "the second")


def compare(first: Evaluated, second: Evaluated) -> str:
    """Describe, within each turn budget that both have, how they differ on the tasks that both have results of; before
    that, what only one of them has, and the settings and tasks that differ.

    Raises:
        ConfigError: they have no task in common within one budget.
    """
    pairings, left_out = [], []
    for budget in sorted({result.budget for one in (first, second) for result in one.results}):
        scores = [scores_by_task(r for r in one.results if r.budget == budget) for one in (first, second)]
        both = [task_id for task_id in scores[0] if task_id in scores[1]]
        left_out += [
            f"at most {budget} turns: {_listed([id for id in its if id not in both])} of {_ORDINALS[number]} alone"
            for number, its in enumerate(scores)
            if len(its) > len(both)
        ]
        if both:
            pairings.append(_describe(budget, pair(*([fmean(its[task_id]) for task_id in both] for its in scores))))
    if not pairings:
        what = "; ".join(left_out) or "neither has a result"
        raise ConfigError(f"the two evaluations have no results of the same task within the same budget: {what}")
    lines = ["Left out, since only one of the two has them:", *(f"  {one}" for one in left_out)] if left_out else []
    names = sorted({*first.settings, *second.settings})
    if differing := [name for name in names if first.settings.get(name) != second.settings.get(name)]:
        lines.append(f"Settings that differ: {', '.join(differing)}")
    if changed := [id for id, digest in first.digests.items() if second.digests.get(id, digest) != digest]:
        lines.append(f"Tasks of one id with another content: {_listed(changed)}")
    return "\n".join([*lines, *pairings])


def _listed(task_ids: Sequence[str]) -> str:
    more = ", ..." if len(task_ids) > _NAMED else ""
    return f"{len(task_ids)} tasks ({', '.join(task_ids[:_NAMED])}{more})"


def _describe(budget: int, paired: Paired) -> str:
    low_high = "no interval for one task"
    if paired.interval is not None:
        low_high = f"95% interval {_points(paired.interval[0])} to {_points(paired.interval[1])}"
    verdict = "no clear difference"
    if paired.told_apart:
        verdict = f"the second is {'better' if paired.difference > 0 else 'worse'}"
    return (
        f"At most {budget} turns, {paired.tasks} tasks of both: {percent(paired.first)} and {percent(paired.second)}, "
        f"{_points(paired.difference)} points ({low_high}; p = {paired.p_value:.3f}); the second is better on "
        f"{paired.better}, worse on {paired.worse}: {verdict}."
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
