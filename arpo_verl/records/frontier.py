"""`frontier.jsonl` has frontier sampling's estimates of the tasks, one line for each training step.

A line has the step's changes, but the first line of each start has all tasks. So a run that resumes from a checkpoint
replaces all estimates of the steps that it repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from arpo_verl.records.json_files import Integer, append_objects
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


class FrontierLine(msgspec.Struct):
    """A line of the file."""

    step: Integer
    tasks: list[TaskEstimate]

    def by_task(self) -> dict[str, RecordedEstimate]:
        """Return the estimates by the tasks' ids."""
        return {one.task_id: RecordedEstimate(**asdict(one), step=self.step) for one in self.tasks}
