"""Tasks that break desktops are kept away from them for a while. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from arpo_verl.environments.config import EnvironmentConfig

HOSTS_TO_BLAME = 2


@dataclass
class _Record:
    """A task's faults since an episode of it was last completed."""

    began: int
    """How many episodes of all tasks had been completed by then."""
    places: list[tuple[int, str]] = field(default_factory=list)
    """Slot and host of each fault."""
    until: float | None = None

    @property
    def faults(self) -> int:
        return len(self.places)

    @property
    def slots(self) -> set[int]:
        return {slot for slot, _ in self.places}

    @property
    def hosts(self) -> set[str]:
        return {host for _, host in self.places}


class Quarantine:
    """Counts faults by task, and blames the task only where others are completed meanwhile: when nothing is, a network
    or a cloud is down. A task on probation, its time over, keeps its count: one more fault sends it back.

    Args:
        config: `quarantine_faults`, `quarantine_desktops`, `quarantine_s`.
        num_hosts: how many the pool has desktops on now that could be leased. On two of them a task must have broken
            some, where there are two: one that is ill breaks those of any task.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        num_hosts: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._config = config
        self._num_hosts = num_hosts
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._completed = 0

    def fault(self, task_id: str, slot: int, host: str) -> None:
        """Count a fault of the desktop in `slot` of `host` under an episode of the task."""
        record = self._records.setdefault(task_id, _Record(self._completed))
        record.places.append((slot, host))
        if self._is_to_blame(record):
            record.until = self._clock() + self._config.quarantine_s

    def suspects(self, task_id: str) -> bool:
        """Whether the task broke a desktop and other tasks' episodes were completed since, but none of its own."""
        record = self._records.get(task_id)
        return record is not None and self._completed > record.began

    def _is_to_blame(self, record: _Record) -> bool:
        config = self._config
        enough_slots = len(record.slots) >= min(config.quarantine_desktops, config.num_desktops)
        is_wide = enough_slots and len(record.hosts) >= min(HOSTS_TO_BLAME, self._num_hosts())
        return 0 < config.quarantine_faults <= record.faults and is_wide and self._completed > record.began

    def completed(self, task_id: str) -> None:
        """An episode of the task came to its verdict: whatever broke before was not the task's doing."""
        self._records.pop(task_id, None)
        self._completed += 1

    def refusal(self, task_id: str) -> str | None:
        """Why the task gets no desktop now; None when it does."""
        record = self._records.get(task_id)
        if record is None or record.until is None or record.until <= self._clock():
            return None
        return (
            f"task {task_id} is quarantined for {record.until - self._clock():.0f} s more: its episodes broke desktops "
            f"{record.faults} times, on {len(record.slots)} different ones of {len(record.hosts)} hosts, and none was "
            f"completed in between "
            f"(environment.quarantine_faults={self._config.quarantine_faults}); try it by hand or leave it out"
        )

    @property
    def task_ids(self) -> list[str]:
        """The tasks that are quarantined now."""
        return [task_id for task_id in self._records if self.refusal(task_id) is not None]
