"""Success by step, by task and in validation, as rates with their uncertainty, for the page. Shares are in [0, 1]."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from arpo_verl.lib.intervals import wilson_interval
from arpo_verl.records.metrics_files import Metrics
from arpo_verl.records.run_summary import validation_success
from arpo_verl.records.summaries import EpisodeSummary

Key = TypeVar("Key", bound=Hashable)


def rate(count: int, total: int) -> dict[str, Any]:
    """Describe how often something happened: the share is null if `total` is 0.

    The 95% interval is Wilson's, as if episodes were independent.
    """
    share = count / total if total else None
    low, high = wilson_interval(share or 0.0, total)
    return {"count": count, "total": total, "share": share, "low": low, "high": high}


def success_rate(episodes: Iterable[EpisodeSummary]) -> dict[str, Any]:
    """Return the rate of the evaluated episodes that got the full score."""
    scores = [episode.success for episode in episodes if episode.success is not None]
    return rate(sum(score >= 1 for score in scores), len(scores))


def is_validation(episode: EpisodeSummary) -> bool:
    """Return whether an episode is a validation's; if the run did not record that, it is one at step 0."""
    return episode.step == 0 if episode.validation is None else episode.validation


def by_step(episodes: Iterable[EpisodeSummary], metrics: Metrics) -> list[dict[str, Any]]:
    """Return training success by step, from training episodes. It leaves out a step that is still being played, since
    episodes that end early are not representative."""
    measured = dict(zip(metrics.steps, metrics.column("rollout/success_mean"), strict=True))
    ended = max((step for step, value in measured.items() if value is not None), default=float("inf"))
    return _steps((episode for episode in episodes if episode.step <= ended), measured)


def validations(episodes: Iterable[EpisodeSummary], metrics: Metrics) -> list[dict[str, Any]]:
    """Return validations by step, from their episodes."""
    rows = (
        {name: value for name, values in metrics.series.items() if (value := values[i]) is not None}
        for i in range(len(metrics.steps))
    )
    return _steps(episodes, {step: validation_success(row) for step, row in zip(metrics.steps, rows, strict=True)})


def _steps(episodes: Iterable[EpisodeSummary], measured: Mapping[int, float | None]) -> list[dict[str, Any]]:
    """Return each step with the rate of its recorded episodes, and the mean score that the trainer logged of all."""
    recorded = group_by((episode.step, episode) for episode in episodes)
    steps = sorted({*recorded, *(step for step, value in measured.items() if value is not None)})
    return [
        {"step": step, "recorded": success_rate(recorded.get(step, [])), "measured": measured.get(step)}
        for step in steps
    ]


def by_task(training: Sequence[EpisodeSummary], validation: Sequence[EpisodeSummary]) -> list[dict[str, Any]]:
    """Return success by task, hardest first: in training, in the earlier and the later half of its steps, and in the
    first and the last validation."""
    trained = group_by((episode.task_id, episode) for episode in training)
    validated = group_by((episode.task_id, episode) for episode in validation)
    steps = sorted({episode.step for episode in training})
    middle = steps[(len(steps) + 1) // 2] if len(steps) > 1 else float("inf")
    ends = sorted({episode.step for episode in validation})
    first, last = ends[:1], ends[1:][-1:]

    def task(task_id: str) -> dict[str, Any]:
        episodes, validations = trained.get(task_id, []), validated.get(task_id, [])
        return {
            "task_id": task_id,
            "instruction": (episodes or validations)[-1].instruction,
            "training": success_rate(episodes),
            "earlier": success_rate(episode for episode in episodes if episode.step < middle),
            "later": success_rate(episode for episode in episodes if episode.step >= middle),
            "first_validation": success_rate(episode for episode in validations if episode.step in first),
            "last_validation": success_rate(episode for episode in validations if episode.step in last),
        }

    def order(task: Mapping[str, Any]) -> tuple[float, str]:
        share = task["training"]["share"]
        return 2.0 if share is None else share, task["task_id"]

    return sorted(map(task, {*trained, *validated}), key=order)


def group_by(pairs: Iterable[tuple[Key, EpisodeSummary]]) -> dict[Key, list[EpisodeSummary]]:
    """Group the episodes by key, in their order."""
    groups: dict[Key, list[EpisodeSummary]] = defaultdict(list)
    for key, episode in pairs:
        groups[key].append(episode)
    return dict(groups)
