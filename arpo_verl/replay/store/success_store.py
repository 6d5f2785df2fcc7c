"""Hold past successes in memory, in plain Python, without torch and veRL.

A trajectory is kept small, as its record (see `record.py`) and its screenshots, each once. Pixel tensors and position
ids (some 50 MB for a 1080p screenshot in float32, against 0.25 MB of PNG) are rebuilt on injection. See `rows.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arpo_verl.replay.store.record import NOT_ITS_OWN, decode_record, encode_record, read_record
from arpo_verl.replay.store.screenshots import ScreenshotStore, screenshot_name
from arpo_verl.replay.trajectory import StoredTrajectory

__all__ = ["StoredTrajectory", "SuccessStore"]


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A trajectory in the store."""

    task_id: str
    record: bytes
    screenshots: tuple[str, ...]
    """Their names, in order."""


@dataclass(frozen=True)
class Candidate:
    """A stored success for a choice: its columns stay packed and its screenshots unread. Candidates of equal
    trajectories are equal."""

    serial: int = field(compare=False)
    """The number by which `SuccessStore.trajectory` finds it."""
    fields: Mapping[str, Any] = field(repr=False)
    """The fields of its record without `NOT_ITS_OWN`."""

    @property
    def task_id(self) -> str:
        return str(self.fields["task_id"])

    @property
    def step(self) -> int:
        """The training step whose rollout made it."""
        return int(self.fields["step"])

    @property
    def success(self) -> float:
        return float(self.fields["success"])

    @property
    def reward(self) -> float:
        return float(self.fields["reward"])


class SuccessStore:
    """Keeps at most `capacity_per_task` successes a task, and drops the oldest first.

    Only the order of additions decides which one leaves, never time. So a restored store continues as the saved one
    would have.
    """

    def __init__(self, capacity_per_task: int, reward_function: str | None = None) -> None:
        self.capacity_per_task = capacity_per_task
        self.reward_function = reward_function
        """Name and arguments of the run's reward function, if they are known."""
        self.saved_in: Path | None = None
        """The folder of its last save or load. The next save links its screenshots from there."""
        self.memory: list[float] = []
        """What the replay method keeps over steps; see `ReplayMethod.remember`."""
        self._entries: dict[int, StoredRecord] = {}  # by serial number, in the order in which they would leave
        self._tasks: dict[str, dict[int, None]] = {}  # the serial numbers of each task, in the same order
        self._screenshots = ScreenshotStore()
        self._record_bytes = 0
        self._next_serial = 0

    def add(self, trajectory: StoredTrajectory) -> None:
        """Store `trajectory` as the newest, and drop the oldest of its task if there are too many.

        Raises:
            ReplayError: it contains what cannot be written to a file.
        """
        names = [screenshot_name(content) for content in trajectory.screenshots]
        record = StoredRecord(trajectory.task_id, encode_record(trajectory, names), tuple(names))
        self.add_record(record, dict(zip(names, trajectory.screenshots, strict=True)).__getitem__)

    def add_record(self, record: StoredRecord, content: Callable[[str], bytes], serial: int | None = None) -> None:
        """Store a trajectory that is already a record; see `add`.

        Args:
            content: returns a screenshot by its name; called only for those that this store does not have.
            serial: its age among the others, if they do not enter in the order of their age; see `records`.
        """
        new = {name: content(name) for name in set(record.screenshots) if name not in self._screenshots}
        serial = self._next_serial if serial is None else serial
        self._next_serial = max(self._next_serial, serial + 1)
        names = tuple(self._screenshots.acquire(name, new) for name in record.screenshots)
        self._entries[serial] = dataclasses.replace(record, screenshots=names)
        self._record_bytes += len(record.record)
        of_task = self._tasks.setdefault(record.task_id, {})
        of_task[serial] = None
        if len(of_task) > self.capacity_per_task:
            self.remove(next(iter(of_task)))

    def candidates(self, task_id: str) -> tuple[Candidate, ...]:
        """Return the task's successes to choose from, oldest first."""
        return tuple(
            Candidate(serial, {name: value for name, value in fields.items() if name not in NOT_ITS_OWN})
            for serial in sorted(self._tasks.get(task_id, ()))
            for fields in [read_record(self._entries[serial].record)]
        )

    def trajectory(self, serial: int) -> StoredTrajectory:
        """Return the success with this serial, with its screenshots."""
        return decode_record(self._entries[serial].record, self._screenshots.read)

    def of_task(self, task_id: str) -> tuple[StoredTrajectory, ...]:
        """Return the task's successes, oldest first."""
        return tuple(self.trajectory(serial) for serial in sorted(self._tasks.get(task_id, ())))

    def trajectories(self) -> tuple[StoredTrajectory, ...]:
        """Return all successes, oldest first."""
        return tuple(self.trajectory(serial) for serial in sorted(self._entries))

    def records(self) -> Iterator[tuple[int, StoredRecord]]:
        """Yield serial numbers (in the order of age) and records, in the order in which they would leave.

        Adding them in this order to an empty store of the same capacity gives the same store.
        """
        yield from self._entries.items()

    def screenshot(self, name: str) -> bytes:
        """Return a stored screenshot by its name."""
        return self._screenshots.read(name)

    def remove(self, serial: int) -> None:
        """Drop the success with this serial."""
        record = self._entries.pop(serial)
        self._record_bytes -= len(record.record)
        serials = self._tasks[record.task_id]
        del serials[serial]
        if not serials:
            del self._tasks[record.task_id]
        for name in record.screenshots:
            self._screenshots.release(name)

    def clear(self) -> None:
        """Drop everything."""
        for serial in list(self._entries):
            self.remove(serial)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_tasks(self) -> int:
        return len(self._tasks)

    @property
    def num_bytes(self) -> int:
        """Bytes of the records and of the screenshots, each counted once."""
        return self._record_bytes + self._screenshots.num_bytes
