"""The store of past successes: plain Python, no torch, no veRL.

A trajectory is kept small: its record (see `records.py`) and its screenshots, each once. Pixel tensors and position ids
(some 50 MB a 1080p screenshot in float32, against 0.25 MB of PNG) are made anew on injection. See `rows.py`.
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
    """A trajectory as the store holds it."""

    task_id: str
    record: bytes
    screenshots: tuple[str, ...]
    """Names, in order of the sequence."""


@dataclass(frozen=True)
class Candidate:
    """A held success as a choice needs it: no column of its record is unpacked, no screenshot read. Candidates of equal
    trajectories are equal."""

    serial: int = field(compare=False)
    """What `SuccessStore.trajectory` finds it by."""
    fields: Mapping[str, Any] = field(repr=False)
    """Of its record, but for `NOT_ITS_OWN`."""

    @property
    def task_id(self) -> str:
        return str(self.fields["task_id"])

    @property
    def step(self) -> int:
        """Training step whose rollout made it."""
        return int(self.fields["step"])

    @property
    def success(self) -> float:
        return float(self.fields["success"])

    @property
    def reward(self) -> float:
        return float(self.fields["reward"])


class SuccessStore:
    """At most `capacity_per_task` successes a task; the oldest leaves for what enters.

    Which one leaves is decided by the order of additions alone, never by time, so that a restored store goes on as the
    saved one would have.
    """

    def __init__(self, capacity_per_task: int) -> None:
        self.capacity_per_task = capacity_per_task
        self.saved_in: Path | None = None
        """Where `persistence.py` wrote it last, or read it from: the next save links its screenshots from there."""
        self._entries: dict[int, StoredRecord] = {}  # by serial number: in the order in which they would leave
        self._tasks: dict[str, dict[int, None]] = {}  # the serials of each task, in the same order
        self._screenshots = ScreenshotStore()
        self._record_bytes = 0
        self._next_serial = 0

    def add(self, trajectory: StoredTrajectory) -> None:
        """Store `trajectory` as the newest, and drop the oldest of its task where there are too many.

        Raises:
            ReplayError: it holds what cannot be written to a file.
        """
        names = [screenshot_name(content) for content in trajectory.screenshots]
        record = StoredRecord(trajectory.task_id, encode_record(trajectory, names), tuple(names))
        self.add_record(record, dict(zip(names, trajectory.screenshots, strict=True)).__getitem__)

    def add_record(self, record: StoredRecord, content: Callable[[str], bytes], serial: int | None = None) -> None:
        """As `add`, for a trajectory that is a record already.

        Args:
            content: gives a screenshot by its name; asked only for those that this store does not hold.
            serial: its age among the others, where they do not enter in the order of their age; see `records`.
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
            self._drop(next(iter(of_task)))

    def candidates(self, task_id: str) -> tuple[Candidate, ...]:
        """The task's successes for a choice among them, oldest first."""
        return tuple(
            Candidate(serial, {name: value for name, value in fields.items() if name not in NOT_ITS_OWN})
            for serial in sorted(self._tasks.get(task_id, ()))
            for fields in [read_record(self._entries[serial].record)]
        )

    def trajectory(self, serial: int) -> StoredTrajectory:
        """The held success of this serial, with its screenshots."""
        return self._decode(self._entries[serial])

    def of_task(self, task_id: str) -> tuple[StoredTrajectory, ...]:
        """The task's successes, oldest first."""
        return tuple(self.trajectory(serial) for serial in sorted(self._tasks.get(task_id, ())))

    def trajectories(self) -> tuple[StoredTrajectory, ...]:
        """All of them, oldest first."""
        return tuple(self.trajectory(serial) for serial in sorted(self._entries))

    def records(self) -> Iterator[tuple[int, StoredRecord]]:
        """Serial (its order is that of age) and record, in the order in which they would leave.

        Adding them in this order to an empty store of the same capacity gives this store again.
        """
        yield from self._entries.items()

    def screenshot(self, name: str) -> bytes:
        """A held screenshot by its name."""
        return self._screenshots.read(name)

    def remove(self, serial: int) -> None:
        """Drop the success of this serial."""
        self._drop(serial)

    def clear(self) -> None:
        """Drop everything."""
        for serial in list(self._entries):
            self._drop(serial)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_tasks(self) -> int:
        return len(self._tasks)

    @property
    def num_bytes(self) -> int:
        """Of the records and of the screenshots, each once."""
        return self._record_bytes + self._screenshots.num_bytes

    def _decode(self, record: StoredRecord) -> StoredTrajectory:
        return decode_record(record.record, self._screenshots.read)

    def _drop(self, serial: int) -> None:
        record = self._entries.pop(serial)
        self._record_bytes -= len(record.record)
        serials = self._tasks[record.task_id]
        del serials[serial]
        if not serials:
            del self._tasks[record.task_id]
        for name in record.screenshots:
            self._screenshots.release(name)
