"""Success by step, by task and in validation, as rates with their uncertainty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from arpo_verl.lib.intervals import wilson_interval
from arpo_verl.records.metrics_files import Metrics
from arpo_verl.records.run_summary import validation_success
from arpo_verl.records.summaries import EpisodeSummary

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Rate:
    """How often something happened: `count` of `total`, with its 95% interval. Shares are in [0, 1]."""

    count: int
    total: int

    @property
    def share(self) -> float:
        return self.count / self.total if self.total else 0.0

    def document(self) -> dict[str, Any]:
        """Return it for the page. The interval is Wilson's, as if episodes were independent."""
        low, high = wilson_interval(self.share, self.total)
        share = self.share if self.total else None
        return {"count": self.count, "total": self.total, "share": share, "low": low, "high": high}


def success_rate(episodes: Iterable[EpisodeSummary]) -> Rate:
    """Count how many of the evaluated episodes got the full score."""
    scores = [episode.success for episode in episodes if episode.success is not None]
    return Rate(sum(score >= 1 for score in scores), len(scores))


@dataclass(frozen=True)
class StepSuccess:
    """The success of one step, in training or validation."""

    step: int
    recorded: Rate
    """Rate of the recorded episodes; its `total` is 0 if there are none."""
    measured: float | None
    """Mean score of all of the step's episodes, as the trainer logged it."""

    @property
    def share(self) -> float | None:
        return self.measured if self.measured is not None else self.recorded.share if self.recorded.total else None


@dataclass(frozen=True)
class TaskSuccess:
    """One task over the run, with its training episodes of the earlier and of the later half of the steps."""

    task_id: str
    instruction: str
    training: Rate
    earlier: Rate
    later: Rate
    first_validation: Rate
    last_validation: Rate

    @property
    def order(self) -> tuple[float, str]:
        """Sort the hardest tasks first."""
        return self.training.share if self.training.total else 2.0, self.task_id


def is_validation(episode: EpisodeSummary) -> bool:
    """Return whether an episode is a validation's; if the run did not record that, it is one at step 0."""
    return episode.step == 0 if episode.validation is None else episode.validation


def by_step(episodes: Iterable[EpisodeSummary], metrics: Metrics) -> list[StepSuccess]:
    """Return training success by step, from training episodes. It leaves out a step that is still being played, since
    episodes that end early are not representative."""
    measured = dict(zip(metrics.steps, metrics.column("rollout/success_mean"), strict=True))
    ended = max((step for step, value in measured.items() if value is not None), default=float("inf"))
    return _steps((episode for episode in episodes if episode.step <= ended), measured)


def validations(episodes: Iterable[EpisodeSummary], metrics: Metrics) -> list[StepSuccess]:
    """Return validations by step, from their episodes."""
    rows = (
        {name: value for name, values in metrics.series.items() if (value := values[i]) is not None}
        for i in range(len(metrics.steps))
    )
    measured = {step: validation_success(row) for step, row in zip(metrics.steps, rows, strict=True)}
    return _steps(episodes, measured)


def _steps(episodes: Iterable[EpisodeSummary], measured: dict[int, float | None]) -> list[StepSuccess]:
    recorded = group_by((episode.step, episode) for episode in episodes)
    steps = sorted({*recorded, *(step for step, value in measured.items() if value is not None)})
    return [StepSuccess(step, success_rate(recorded.get(step, [])), measured.get(step)) for step in steps]


def by_task(training: Sequence[EpisodeSummary], validation: Sequence[EpisodeSummary]) -> list[TaskSuccess]:
    """Return success by task, hardest first."""
    trained = group_by((episode.task_id, episode) for episode in training)
    validated = group_by((episode.task_id, episode) for episode in validation)
    steps = sorted({episode.step for episode in training})
    middle = steps[(len(steps) + 1) // 2] if len(steps) > 1 else float("inf")
    first, last = (min, max) if validation else (None, None)
    ends = [f(episode.step for episode in validation) if f else None for f in (first, last)]
    tasks = []
    for task_id in {*trained, *validated}:
        episodes, validations = trained.get(task_id, []), validated.get(task_id, [])
        tasks.append(
            TaskSuccess(
                task_id=task_id,
                instruction=(episodes or validations)[-1].instruction,
                training=success_rate(episodes),
                earlier=success_rate(episode for episode in episodes if episode.step < middle),
                later=success_rate(episode for episode in episodes if episode.step >= middle),
                first_validation=success_rate(episode for episode in validations if episode.step == ends[0]),
                last_validation=success_rate(
                    episode for episode in validations if episode.step == ends[1] and ends[1] != ends[0]
                ),
            )
        )
    return sorted(tasks, key=lambda task: task.order)


def group_by(pairs: Iterable[tuple[Key, EpisodeSummary]]) -> dict[Key, list[EpisodeSummary]]:
    """Group the episodes by key, in their order."""
    groups: dict[Key, list[EpisodeSummary]] = defaultdict(list)
    for key, episode in pairs:
        groups[key].append(episode)
    return dict(groups)
