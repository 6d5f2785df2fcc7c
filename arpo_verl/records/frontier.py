"""`frontier.jsonl` has frontier sampling's estimates of the tasks, one line for each training step.

A line has the step's changes, but the first line of each start has all tasks. So a run that resumes from a checkpoint
replaces all estimates of the steps that it repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from arpo_verl.records.json_files import GrowingFile, Integer, append_objects
from arpo_verl.tasks.frontier import TaskEstimate


def append_estimates(path: Path, step: int, estimates: Sequence[TaskEstimate]) -> None:
    """Append a step's line.

    Raises:
        OSError: the file cannot be written.
    """
    append_objects(path, [{"step": step, "tasks": [asdict(estimate) for estimate in estimates]}])


@dataclass(frozen=True, slots=True)
class RecordedEstimate(TaskEstimate):
    """A task's last written estimate."""

    step: int = 0
    """The training step before the estimate."""


class _Line(msgspec.Struct):
    step: Integer
    tasks: list[TaskEstimate]


class FrontierFile:
    """Reads the growing file. It is not thread-safe: its `Run` locks."""

    def __init__(self, path: Path):
        self._file = GrowingFile(path, _Line)
        self._by_task: dict[str, RecordedEstimate] = {}

    def refresh(self) -> list[RecordedEstimate]:
        """Return the last estimate of every task, by id; empty if the run draws uniformly."""
        for line in self._file.read_new(forget=self._by_task.clear):
            read = [RecordedEstimate(**asdict(estimate), step=line.step) for estimate in line.tasks]
            self._by_task.update({estimate.task_id: estimate for estimate in read})
        return [self._by_task[task_id] for task_id in sorted(self._by_task)]
