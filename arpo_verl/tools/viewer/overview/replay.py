"""Shows the effect of replay on groups, tasks and metrics, and the age of replays, for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from arpo_verl.records.groups import TrainedRow
from arpo_verl.records.metrics_files import Metrics
from arpo_verl.records.summaries import EpisodeSummary
from arpo_verl.tools.viewer.overview.success import rate

WITHOUT = "replay/without/"
_OUTCOMES = ("all_failed", "mixed", "all_solved")


def replay_effect(
    groups: Sequence[Sequence[TrainedRow]], episodes: Iterable[EpisodeSummary], metrics: Metrics
) -> dict[str, Any]:
    """Combine the trainer's metrics, the recorded groups and their episodes. Values that the run did not record are
    null or empty.

    `groups` counts them by outcome before any replay; `ages` are the replays', in training steps; `ratio_mean` is the
    mean over the replayed rows' tokens of the policy's probability divided by the original policy's.
    """
    replayed = [position for position, count in enumerate(metrics.column("replay/injected")) if count]
    ages = [age for group in groups for row in group if (age := _age(row)) is not None]
    stored = [value for value in metrics.column("replay/store_trajectories") if value is not None]
    return {
        "injected": _total(metrics, "replay/injected"),
        "missed": _total(metrics, "replay/missed"),
        "groups": {name: _total(metrics, f"replay/groups_{name}") for name in _OUTCOMES},
        "teaching": _teaching(groups, {(episode.uid, episode.session): episode for episode in episodes}),
        "tasks": _by_task(groups),
        "ages": sorted(ages),
        "median_age": median(ages) if ages else None,
        "compared": _compare(metrics, replayed),
        "steps_with_replay": len(replayed),
        "ratio_mean": _mean(metrics, "replay/ratio_mean", replayed),
        "store_trajectories": int(stored[-1]) if stored else None,
        "has_groups_file": bool(groups),
    }


def _age(row: TrainedRow) -> int | None:
    """Return the age of the replay in this row, in training steps."""
    if row.replay is None or row.replay.step is None or row.step is None:
        return None
    return row.step - row.replay.step


def _teaching(
    groups: Iterable[Sequence[TrainedRow]], played: Mapping[tuple[str, int], EpisodeSummary]
) -> list[dict[str, Any]]:
    """Count groups whose members differ, as played and as trained: if all are equal, every advantage is 0.

    It covers the recorded groups whose replaced episodes' own results are known.
    """
    successes, rewards = [], []
    for group in groups:
        members = [row for row in group if not row.added]
        known = [(row, episode) for row in members if (episode := played.get((row.uid, row.session))) is not None]
        if len(known) == len(members) > 1:
            played_successes = [episode.success for _, episode in known]
            # Every replay is a success.
            trained = [1.0 if row.replaced else success for row, success in zip(members, played_successes, strict=True)]
            trained += [1.0] * (len(group) - len(members))
            successes.append((len(set(played_successes)) > 1, len(set(trained)) > 1))
            played_rewards = [episode.reward if row.replaced else row.reward for row, episode in known]
            rewards.append((len(set(played_rewards)) > 1, len({row.reward for row in group}) > 1))
    outcomes = {"success": successes, "reward (success and format)": rewards}
    return [
        {
            "what": what,
            "as_played": rate(sum(before for before, _ in pairs), len(pairs)),
            "as_trained": rate(sum(after for _, after in pairs), len(pairs)),
        }
        for what, pairs in outcomes.items()
        if pairs
    ]


def _by_task(groups: Iterable[Sequence[TrainedRow]]) -> list[dict[str, Any]]:
    """Count the groups and replays of each task with a replay, most replays first."""
    all_groups, replays = Counter[str](), Counter[str]()
    for group in groups:
        if (task_id := group[0].task_id) is not None:
            all_groups[task_id] += 1
            replays[task_id] += sum(row.replay is not None for row in group)
    return [
        {"task_id": task_id, "groups": all_groups[task_id], "replays": count}
        for task_id, count in replays.most_common()
        if count
    ]


def _compare(metrics: Metrics, positions: list[int]) -> list[dict[str, Any]]:
    """Return metrics' means over the steps with a replay, for all rows and without the replayed ones."""
    compared = []
    for name in sorted(name.removeprefix(WITHOUT) for name in metrics.series if name.startswith(WITHOUT)):
        with_replays, without = _mean(metrics, name, positions), _mean(metrics, WITHOUT + name, positions)
        if with_replays is not None and without is not None:
            compared.append({"name": name, "with_replays": with_replays, "without": without})
    return compared


def _mean(metrics: Metrics, name: str, positions: Iterable[int]) -> float | None:
    column = metrics.column(name)
    values = [value for position in positions if (value := column[position]) is not None]
    return fmean(values) if values else None


def _total(metrics: Metrics, name: str) -> int:
    return int(sum(value for value in metrics.column(name) if value is not None))
