"""The store of past successes: plain Python, no torch, no veRL.

A trajectory is kept small: its record (see `records.py`) and its screenshots, each once. Pixel tensors and position ids
(some 50 MB a 1080p screenshot in float32, against 0.25 MB of PNG) are made anew on injection. See `rows.py`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arpo_verl.config import require
from arpo_verl.replay.config import EVICTIONS, FULLEST_TASK, LEAST_RECENTLY_REPLAYED, ReplayConfig
from arpo_verl.replay.store.encoding import encode_screenshots
from arpo_verl.replay.store.record import NOT_ITS_OWN, decode_record, encode_record, read_record
from arpo_verl.replay.store.screenshots import OVERHEAD_BYTES, ScreenshotStore, screenshot_name
from arpo_verl.replay.store.spill import SpillFolder
from arpo_verl.replay.trajectory import StoredTrajectory

__all__ = ["StoredTrajectory", "SuccessStore"]

logger = logging.getLogger(__name__)

# What CPython takes to keep track of a trajectory, for each of its screenshots, and of a task. As `OVERHEAD_BYTES`.
_BYTES_PER_TRAJECTORY = 272
_BYTES_PER_NAME = 8
BYTES_PER_TASK = 240


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A trajectory as the store holds it."""

    task_id: str
    record: bytes
    screenshots: tuple[str, ...]
    """Names, in order of the sequence."""

    @property
    def num_bytes(self) -> int:
        return len(self.record) + _BYTES_PER_NAME * len(self.screenshots) + _BYTES_PER_TRAJECTORY


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
    """At most `capacity_per_task` successes a task, at most `capacity_bytes` over all; others leave for what enters.

    Which one leaves is decided by the order of additions (and of replays, for `least_recently_replayed`) alone, never
    by time, so that a restored store goes on as the saved one would have.

    Args:
        capacity_per_task: as `ReplayConfig.capacity_per_task`; the others likewise.
    """

    def __init__(
        self,
        capacity_per_task: int,
        capacity_bytes: int,
        *,
        eviction: str = "fifo",
        memory_bytes: int | None = None,
        spill_dir: Path | str | None = None,
        screenshot_encoding: str = "as_sent",
    ) -> None:
        require(eviction in EVICTIONS, "replay.eviction", f"one of {', '.join(EVICTIONS)}", eviction)
        self.capacity_per_task = capacity_per_task
        self.capacity_bytes = capacity_bytes
        self.eviction = eviction
        self.saved_in: Path | None = None
        """Where `persistence.py` wrote it last, or read it from: the next save links its screenshots from there."""
        self._spill = None if spill_dir is None else SpillFolder(spill_dir)
        self._memory_limit = capacity_bytes if self._spill is None or memory_bytes is None else memory_bytes
        self._encoding = screenshot_encoding
        self._entries: dict[int, StoredRecord] = {}  # by serial number: in the order in which they would leave
        self._tasks: dict[str, dict[int, None]] = {}  # the serials of each task, in the same order
        self._screenshots = ScreenshotStore(self._spill)
        self._entry_bytes = 0
        self._next_serial = 0

    @classmethod
    def of_config(cls, config: ReplayConfig) -> SuccessStore:
        """An empty store with the recipe's bounds.

        Raises:
            ReplayError: `replay.spill_dir` cannot be written to.
        """
        return cls(
            config.capacity_per_task,
            config.capacity_bytes,
            eviction=config.eviction,
            memory_bytes=config.memory_bytes,
            spill_dir=config.spill_dir,
            screenshot_encoding=config.screenshot_encoding,
        )

    def add(self, trajectory: StoredTrajectory) -> bool:
        """Store `trajectory` as the newest, and drop others by the policy of eviction until all bounds hold.

        Returns:
            False when it alone exceeds the byte budget and was not stored.

        Raises:
            ReplayError: it holds what cannot be written to a file.
        """
        contents = encode_screenshots(trajectory.screenshots, self._encoding)
        names = [screenshot_name(content) for content in contents]
        record = StoredRecord(trajectory.task_id, encode_record(trajectory, names), tuple(names))
        return self.add_record(record, dict(zip(names, contents, strict=True)).__getitem__)

    def add_record(self, record: StoredRecord, content: Callable[[str], bytes], serial: int | None = None) -> bool:
        """As `add`, for a trajectory that is a record already.

        Args:
            content: gives a screenshot by its name; asked only for those that this store does not hold.
            serial: its age among the others, where they do not enter in the order of their age; see `records`.
        """
        new = {name: content(name) for name in set(record.screenshots) if name not in self._screenshots}
        if not self._fits(record, new):
            return False
        serial = self._next_serial if serial is None else serial
        self._next_serial = max(self._next_serial, serial + 1)
        self._insert(serial, record, new)
        self._make_room()
        return True

    def mark_replayed(self, candidate: Candidate) -> None:
        """Say that one of `candidates` is being replayed; only `least_recently_replayed` asks when."""
        serials = self._tasks.get(candidate.task_id, {})
        if self.eviction == LEAST_RECENTLY_REPLAYED and candidate.serial in serials:
            self._entries[candidate.serial] = self._entries.pop(candidate.serial)
            serials[candidate.serial] = serials.pop(candidate.serial)

    def candidates(self, task_id: str) -> tuple[Candidate, ...]:
        """The task's successes for a choice among them, oldest first; spilled screenshots stay on the disk."""
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
        """All of them, oldest first, spilled screenshots read into memory; `records` walks a large store."""
        return tuple(self.trajectory(serial) for serial in sorted(self._entries))

    def records(self) -> Iterator[tuple[int, StoredRecord]]:
        """Serial (its order is that of age) and record, in the order in which they would leave.

        Adding them in this order to an empty store with the same bounds gives this store again.
        """
        yield from self._entries.items()

    def screenshot(self, name: str) -> bytes:
        """A held screenshot by its name."""
        return self._screenshots.read(name)

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
        """Bytes held in memory, by CPython's cost of what is stored, and on disk."""
        return self.memory_bytes + self.disk_bytes

    @property
    def memory_bytes(self) -> int:
        return self._entry_bytes + self._screenshots.memory_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes spilled."""
        return self._screenshots.disk_bytes

    @property
    def spill_folder(self) -> Path | None:
        """Where spilled screenshots lie, under their names."""
        return None if self._spill is None else self._spill.path

    def _decode(self, record: StoredRecord) -> StoredTrajectory:
        return decode_record(record.record, self._screenshots.read)

    def _fits(self, record: StoredRecord, new: Mapping[str, bytes]) -> bool:
        """Whether the bounds hold it when nothing else is there."""
        names = set(record.screenshots)
        index = record.num_bytes + _task_bytes(record.task_id) + len(names) * OVERHEAD_BYTES
        contents = sum(len(new[name]) if name in new else self._screenshots.size(name) for name in names)
        in_memory = index if self._spill is not None else index + contents
        if index + contents <= self.capacity_bytes and in_memory <= self._memory_limit:
            return True
        logger.warning(
            "a success of task %s needs %d bytes, %d of them in memory, more than replay.capacity_bytes=%d or "
            "replay.memory_bytes=%d: not stored",
            *(record.task_id, index + contents, in_memory, self.capacity_bytes, self._memory_limit),
        )
        return False

    def _insert(self, serial: int, record: StoredRecord, new: Mapping[str, bytes]) -> None:
        if record.task_id not in self._tasks:
            self._tasks[record.task_id] = {}
            self._entry_bytes += _task_bytes(record.task_id)
        names = tuple(self._screenshots.acquire(name, new) for name in record.screenshots)
        self._entries[serial] = dataclasses.replace(record, screenshots=names)
        self._tasks[record.task_id][serial] = None
        self._entry_bytes += record.num_bytes
        if len(self._tasks[record.task_id]) > self.capacity_per_task:
            self._drop(next(iter(self._tasks[record.task_id])))

    def _make_room(self) -> None:
        while self.memory_bytes > self._memory_limit and self._screenshots.spill_oldest():
            pass
        while self.num_bytes > self.capacity_bytes or self.memory_bytes > self._memory_limit:
            self._drop(self._next_to_leave())

    def _next_to_leave(self) -> int:
        if self.eviction != FULLEST_TASK:
            return next(iter(self._entries))
        most = max(map(len, self._tasks.values()))
        return min(next(iter(serials)) for serials in self._tasks.values() if len(serials) == most)

    def _drop(self, serial: int) -> None:
        record = self._entries.pop(serial)
        self._entry_bytes -= record.num_bytes
        serials = self._tasks[record.task_id]
        del serials[serial]
        if not serials:
            del self._tasks[record.task_id]
            self._entry_bytes -= _task_bytes(record.task_id)
        for name in record.screenshots:
            self._screenshots.release(name)


def _task_bytes(task_id: str) -> int:
    return BYTES_PER_TASK + len(task_id.encode())
