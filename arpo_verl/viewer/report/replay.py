"""What replay did: to the groups, to which tasks, how old it was, and to the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from arpo_verl.viewer.episodes import EpisodeSummary, step_of
from arpo_verl.viewer.groups import GROUPS_FILE
from arpo_verl.viewer.json_files import GrowingFile
from arpo_verl.viewer.metrics import Metrics
from arpo_verl.viewer.report.rates import Rate

WITHOUT = "replay/without/"


@dataclass(frozen=True)
class Row:
    """A row of a group as it was trained on."""

    session: int
    reward: float | None
    replay: Mapping[str, Any] | None


@dataclass(frozen=True)
class TrainedGroup:
    """A line of `groups.jsonl`."""

    uid: str
    task_id: str
    step: int
    rows: tuple[Row, ...]

    @property
    def replays(self) -> list[Mapping[str, Any]]:
        return [row.replay for row in self.rows if row.replay is not None]


@dataclass(frozen=True)
class TaskReplays:
    """A task's groups."""

    task_id: str
    groups: int
    replays: int


@dataclass(frozen=True)
class Compared:
    """A metric's mean over the steps with a replay: of all rows, and without the replayed ones."""

    name: str
    with_replays: float
    without: float


@dataclass(frozen=True)
class Teaching:
    """How many groups have members that differ in `what`: where all are equal, every advantage is 0.

    Over the recorded groups of which the replaced episodes' own outcomes are known.
    """

    what: str
    as_played: Rate
    as_trained: Rate


@dataclass(frozen=True)
class ReplayEffect:
    """None or empty: the run did not record it."""

    injected: int
    missed: int
    groups: dict[str, int]
    """By outcome, before any replay: all_failed, mixed, all_solved."""
    teaching: list[Teaching]
    tasks: list[TaskReplays]
    """Those with a replay, most replays first."""
    ages: list[int]
    """Of the replays, in training steps."""
    compared: list[Compared]
    steps_with_replay: int
    ratio_mean: float | None
    """Mean over the replayed rows' tokens of the policy's probability over that of the policy that wrote them."""
    store_trajectories: int | None
    """At the end."""
    has_groups_file: bool

    @property
    def median_age(self) -> float | None:
        return median(self.ages) if self.ages else None


def replay_effect(trajectories: Path, episodes: Iterable[EpisodeSummary], metrics: Metrics) -> ReplayEffect:
    """Put together the trainer's metrics, the recorded groups and the episodes behind them."""
    groups = read_groups(trajectories)
    injected = metrics.column("replay/injected")
    replayed = [position for position, count in enumerate(injected) if count]
    ages = [group.step - replay["step"] for group in groups for replay in group.replays if _is_whole(replay)]
    stored = [value for value in metrics.column("replay/store_trajectories") if value is not None]
    return ReplayEffect(
        injected=_total(metrics, "replay/injected"),
        missed=_total(metrics, "replay/missed"),
        groups={name: _total(metrics, f"replay/groups_{name}") for name in ("all_failed", "mixed", "all_solved")},
        teaching=_teaching(groups, {(episode.uid, episode.session): episode for episode in episodes}),
        tasks=_by_task(groups),
        ages=sorted(ages),
        compared=_compare(metrics, replayed),
        steps_with_replay=len(replayed),
        ratio_mean=_mean(metrics, "replay/ratio_mean", replayed),
        store_trajectories=int(stored[-1]) if stored else None,
        has_groups_file=bool(groups),
    )


def read_groups(trajectories: Path) -> list[TrainedGroup]:
    """All recorded groups in the order of their steps; of one trained on twice, after a resume, the later."""
    groups: dict[str, TrainedGroup] = {}
    files = trajectories.glob(f"step_*/{GROUPS_FILE}") if trajectories.is_dir() else ()
    for file in sorted(files, key=lambda file: step_of(file.parent.name) or 0):
        for line in GrowingFile(file).read_new(forget=groups.clear):
            group = _group(line)
            if group is not None:
                groups[group.uid] = group
    return list(groups.values())


def _group(line: Mapping[str, Any]) -> TrainedGroup | None:
    uid, task_id, step, rows = (line.get(name) for name in ("uid", "task_id", "step", "rows"))
    if not (isinstance(uid, str) and isinstance(task_id, str) and isinstance(step, int) and isinstance(rows, list)):
        return None
    members = [row for row in rows if isinstance(row, dict) and isinstance(row.get("session"), int)]
    return TrainedGroup(uid, task_id, step, tuple(_row(member) for member in members))


def _row(member: Mapping[str, Any]) -> Row:
    reward, replay = member.get("reward"), member.get("replay")
    return Row(
        session=member["session"],
        reward=reward if isinstance(reward, (int, float)) else None,
        replay=replay if isinstance(replay, dict) else None,
    )


def _is_whole(replay: Mapping[str, Any]) -> bool:
    return isinstance(replay.get("step"), int)


def _teaching(groups: Iterable[TrainedGroup], played: Mapping[tuple[str, int], EpisodeSummary]) -> list[Teaching]:
    successes, rewards = [], []
    for group in groups:
        episodes = [played.get((group.uid, row.session)) for row in group.rows]
        known = [(row, episode) for row, episode in zip(group.rows, episodes, strict=True) if episode is not None]
        if len(known) == len(group.rows) > 1:
            own = [episode.success for _, episode in known]
            # What is replayed is a success.
            trained = [1.0 if row.replay else success for row, success in zip(group.rows, own, strict=True)]
            successes.append((len(set(own)) > 1, len(set(trained)) > 1))
            own = [episode.reward if row.replay else row.reward for row, episode in known]
            rewards.append((len(set(own)) > 1, len({row.reward for row in group.rows}) > 1))
    outcomes = {"success": successes, "reward (success and format)": rewards}
    return [
        Teaching(what, *(Rate(sum(column), len(column)) for column in zip(*pairs, strict=True)))
        for what, pairs in outcomes.items()
        if pairs
    ]


def _by_task(groups: Iterable[TrainedGroup]) -> list[TaskReplays]:
    all_groups, replays = Counter[str](), Counter[str]()
    for group in groups:
        all_groups[group.task_id] += 1
        replays[group.task_id] += len(group.replays)
    return [TaskReplays(task_id, all_groups[task_id], count) for task_id, count in replays.most_common() if count]


def _compare(metrics: Metrics, positions: list[int]) -> list[Compared]:
    compared = []
    for name in sorted(name.removeprefix(WITHOUT) for name in metrics.series if name.startswith(WITHOUT)):
        with_replays, without = _mean(metrics, name, positions), _mean(metrics, WITHOUT + name, positions)
        if with_replays is not None and without is not None:
            compared.append(Compared(name, with_replays, without))
    return compared


def _mean(metrics: Metrics, name: str, positions: Iterable[int]) -> float | None:
    column = metrics.column(name)
    values = [value for position in positions if (value := column[position]) is not None]
    return fmean(values) if values else None


def _total(metrics: Metrics, name: str) -> int:
    return int(sum(value for value in metrics.column(name) if value is not None))
