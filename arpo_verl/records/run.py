"""A `Run` reads a run's folder while the trainer writes it, and reads nothing twice.

    run = open_run("runs/embedded")
    run.episodes().to_pandas()                        # a tuple of typed values, a data frame on request
    [row.advantage for group in run.groups() for row in group.rows]
    run.metrics().column("rollout/success_mean")
    run.episode(run.episodes()[0].id)["turns"]

Several threads may use a `Run`. What it returns is frozen.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo_verl.errors import ConfigError
from arpo_verl.records.episode_file import read_content
from arpo_verl.records.frontier import FrontierLine, RecordedEstimate
from arpo_verl.records.groups import UNTRAINED, Groups, TrainedGroup, Training, TrainingIndex
from arpo_verl.records.json_files import GrowingFile
from arpo_verl.records.jumps import Jump
from arpo_verl.records.layout import (
    EPISODE_FILE,
    FRONTIER_FILE,
    JUMPS_FILE,
    METRICS_FILE,
    OUTPUT_FILE,
    STARTS_FILE,
    TRAJECTORIES,
    step_of,
)
from arpo_verl.records.live import RunningEpisode, read_pool, read_running
from arpo_verl.records.metrics_files import Metrics, MetricsFiles
from arpo_verl.records.step_folders import StepFolders
from arpo_verl.records.summaries import EpisodeSummary
from arpo_verl.records.table import Table

REFRESH_S = 0.5
"""Least time between two looks at the folder, so that several polling pages cost no more than one."""
_REST = 9
"""The pause after a look, as a multiple of its duration, so that a large run takes a tenth of a core."""
_LONGEST_REST_S = 5.0


@dataclass(frozen=True)
class Snapshot:
    """The recorded episodes at one moment."""

    number: int
    """A number that grows with every change: snapshots of a `Run` with equal numbers are equal."""
    by_id: Mapping[str, EpisodeSummary]
    """The episodes by id, in the order of steps, then of ids."""
    broken: Mapping[str, str]
    """Id of a folder that is not readable as an episode -> why."""
    index: TrainingIndex

    @property
    def episodes(self) -> tuple[EpisodeSummary, ...]:
        """The episodes by step, then by id."""
        return tuple(self.by_id.values())

    def training(self, episode_id: str) -> Training:
        """Return how training used an episode."""
        return self.index.training.get(episode_id, UNTRAINED)


class Run:
    """A run on disk. Open it with `open_run`."""

    def __init__(self, run_dir: Path, trajectories: Path):
        self.run_dir = run_dir
        self.trajectories = trajectories
        self._lock = threading.Lock()
        self._folders = StepFolders(trajectories)
        self._groups = Groups(trajectories)
        self._metrics_files = MetricsFiles(run_dir)
        self._metrics: Metrics | None = None
        self._frontier_file = GrowingFile(trajectories / FRONTIER_FILE, FrontierLine)
        self._frontier: dict[str, RecordedEstimate] = {}
        self._jumps_file = GrowingFile(trajectories / JUMPS_FILE, Jump)
        self._jumps: dict[str, Jump] = {}
        self._snapshot = Snapshot(0, {}, {}, TrainingIndex((), {}))
        self._refresh_at = 0.0

    @property
    def name(self) -> str:
        return self.run_dir.resolve().name

    def snapshot(self) -> Snapshot:
        """Return all episodes, including those that the trainer wrote meanwhile."""
        with self._lock:
            start = time.monotonic()
            if start >= self._refresh_at:
                self._refresh()
                took_s = time.monotonic() - start
                self._refresh_at = start + took_s + max(REFRESH_S, min(_REST * took_s, _LONGEST_REST_S))
            return self._snapshot

    def _refresh(self) -> None:
        folders_changed = self._folders.refresh()
        groups_changed = self._groups.refresh(self._folders.listings.names)
        if folders_changed or groups_changed:
            episodes = sorted(self._folders.episodes.values(), key=lambda episode: (episode.step, episode.id))
            self._snapshot = Snapshot(
                number=self._snapshot.number + 1,
                by_id={episode.id: episode for episode in episodes},
                broken=dict(self._folders.broken),
                index=TrainingIndex(episodes, self._groups.rows()),
            )

    def episodes(self) -> Table[EpisodeSummary]:
        """Return the recorded episodes so far, by step, then by id."""
        return Table(self.snapshot().episodes)

    def groups(self) -> Table[TrainedGroup]:
        """Return the groups of all training steps so far, in the order of the steps."""
        return Table(
            TrainedGroup(rows[0].uid, tuple(rows), rows[0].task_id, rows[0].step)
            for rows in self.snapshot().index.groups()
        )

    def select(self, wanted: Callable[[EpisodeSummary], bool]) -> Snapshot:
        """Return a snapshot of some episodes, as if there were no others."""
        whole = self.snapshot()
        episodes = [episode for episode in whole.episodes if wanted(episode)]
        with self._lock:
            index = TrainingIndex(episodes, self._groups.rows())
        return dataclasses.replace(whole, by_id={episode.id: episode for episode in episodes}, index=index)

    def episode(self, episode_id: str) -> dict[str, Any]:
        """Return the content of an episode's `episode.json`.

        Raises:
            KeyError: there is no such episode (any more).
        """
        folder = self.folder(episode_id)
        try:
            return read_content(folder / EPISODE_FILE)
        except (OSError, ValueError) as error:
            raise KeyError(episode_id) from error

    def folder(self, episode_id: str) -> Path:
        """Return the folder of an episode, finished or being played.

        Raises:
            KeyError: there is no episode with this id. Ids come from outside, so only a folder two levels below the
                trajectories, without links out of them, counts.
        """
        step, _, name = episode_id.partition("/")
        if step_of(step) is None or not name or name in (".", "..") or any(c in name for c in "/\\\0"):
            raise KeyError(episode_id)
        root = self.trajectories.resolve()
        folder = (root / step / name).resolve()
        if not folder.is_relative_to(root) or not folder.is_dir():
            raise KeyError(episode_id)
        return folder

    def metrics(self) -> Metrics:
        """Return the run's curves so far."""
        with self._lock:
            if self._metrics_files.refresh() or self._metrics is None:
                self._metrics = self._metrics_files.metrics()
            return self._metrics

    def count_episodes(self) -> int:
        """Return how many episodes are recorded, by counting their folders."""
        with self._lock:
            self._folders.list_folders()
            return sum(len(step.finished) for step in self._folders.listings.by_name.values())

    def frontier(self) -> list[RecordedEstimate]:
        """Return frontier sampling's estimate of each task, by id; empty if the run draws uniformly."""
        with self._lock:
            for line in self._frontier_file.read_new(forget=self._frontier.clear):
                self._frontier |= line.by_task()
            return [self._frontier[task_id] for task_id in sorted(self._frontier)]

    def jumps(self) -> dict[str, Jump]:
        """Return the last jump of each task whose success jumped to 100% within a training step, by id."""
        with self._lock:
            self._jumps |= {jump.task_id: jump for jump in self._jumps_file.read_new(forget=self._jumps.clear)}
            return dict(self._jumps)

    def running(self) -> list[RunningEpisode]:
        """Return the episodes that are being played."""
        with self._lock:
            self._folders.list_folders()
            folders = list(self._folders.listings.unfinished())
        return read_running(folders)

    def pool(self) -> dict[str, Any] | None:
        """Return the desktop pool's state; None if no trainer runs."""
        return read_pool(self.run_dir)

    def is_live(self) -> bool:
        """Return whether a trainer writes to this run now."""
        return self.pool() is not None or bool(self.running())


def open_run(path: Path | str) -> Run:
    """Open a run by its `run_dir`, or by its trajectories folder.

    Raises:
        ConfigError: the path is neither.
    """
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(
            f"RUN must be a run's folder, got {path}, which is {'a file' if path.exists() else 'not there'}"
        )
    if is_run(path):
        return Run(path, path / TRAJECTORIES)
    if any(step_of(child.name) is not None for child in path.iterdir()):
        return Run(path.resolve().parent if path.resolve().name == TRAJECTORIES else path, path)
    raise ConfigError(
        f"RUN must be a recipe's run_dir, with {TRAJECTORIES}/ or {METRICS_FILE} in it, or a folder of step_NNNNNN "
        f"folders, got {path}, which has neither{_nearby(path)}"
    )


def is_run(path: Path) -> bool:
    """Return whether a folder is a run's, by its content."""
    try:
        signs = (METRICS_FILE, STARTS_FILE, OUTPUT_FILE)  # the last is all that one has in its first seconds
        return (path / TRAJECTORIES).is_dir() or any((path / name).is_file() for name in signs)
    except OSError:  # we may not enter the folder
        return False


def _nearby(path: Path) -> str:
    children = sorted(child for child in path.iterdir() if child.is_dir())
    runs = [str(child) for child in children if is_run(child)]
    return f"; runs in it: {', '.join(runs[:10])}" if runs else "; a run prints its folder when it starts"
