"""`frontier.jsonl` has frontier sampling's estimates of the tasks, one line for each training step.

A line has the step's changes, but the first line of each start has all tasks. So a run that resumes from a checkpoint
replaces all estimates of the steps that it repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arpo_verl.records.json_files import GrowingFile, append_objects, as_number
from arpo_verl.tasks.frontier import TaskEstimate


def append_estimates(path: Path, step: int, estimates: Sequence[TaskEstimate]) -> None:
    """Append a step's line.

    Raises:
        OSError: the file cannot be written.
    """
    append_objects(path, [{"step": step, "tasks": [asdict(estimate) for estimate in estimates]}])


@dataclass(frozen=True, slots=True)
class RecordedEstimate(TaskEstimate):
    """This is a task's last written estimate."""

    step: int = 0
    """The training step before the estimate."""


class FrontierFile:
    """This reads the growing file. It is not thread-safe: its `Run` locks."""

    def __init__(self, path: Path):
        self._file = GrowingFile(path)
        self._by_task: dict[str, RecordedEstimate] = {}

    def refresh(self) -> list[RecordedEstimate]:
        """Return the last estimate of every task, by id; empty if the run draws uniformly."""
        for line in self._file.read_new(forget=self._by_task.clear):
            step, tasks = line.get("step"), line.get("tasks")
            if isinstance(step, int) and isinstance(tasks, list):
                read = [estimate for task in tasks if (estimate := _estimate(task, step)) is not None]
                self._by_task.update({estimate.task_id: estimate for estimate in read})
        return [self._by_task[task_id] for task_id in sorted(self._by_task)]


def _estimate(task: Any, step: int) -> RecordedEstimate | None:
    if not isinstance(task, dict) or not isinstance(task.get("task_id"), str):
        return None
    rate, low, high, share = (as_number(task.get(name)) for name in ("rate", "low", "high", "share"))
    drawn = task.get("drawn")
    if rate is None or low is None or high is None or share is None or not isinstance(drawn, int):
        return None
    return RecordedEstimate(task["task_id"], rate, low, high, drawn, share, step)
