"""The quarantine keeps tasks that break desktops away from them for a while. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from arpo_verl.environments.config import EnvironmentConfig

HOSTS_TO_BLAME = 2


@dataclass
class _Record:
    """These are a task's faults since its last completed episode."""

    began: int
    """How many episodes of all tasks were completed before the first fault."""
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
    """This counts faults by task, and blames a task only if others' episodes complete meanwhile: if none does, a
    network or a cloud is down. After its quarantine a task keeps its count: one more fault sends it back.

    Args:
        config: for `quarantine_faults`, `quarantine_desktops`, `quarantine_s`.
        num_hosts: counts the hosts whose desktops may be leased now. If there are two, a task must have broken desktops
            on two, since a bad host breaks the desktops of any task.
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
        """Count a fault of the desktop in `slot` of `host` during an episode of the task."""
        record = self._records.setdefault(task_id, _Record(self._completed))
        record.places.append((slot, host))
        if self._is_to_blame(record):
            record.until = self._clock() + self._config.quarantine_s

    def suspects(self, task_id: str) -> bool:
        """Return whether the task broke a desktop, and since then only other tasks' episodes were completed."""
        record = self._records.get(task_id)
        return record is not None and self._completed > record.began

    def _is_to_blame(self, record: _Record) -> bool:
        config = self._config
        enough_slots = len(record.slots) >= min(config.quarantine_desktops, config.num_desktops)
        is_wide = enough_slots and len(record.hosts) >= min(HOSTS_TO_BLAME, self._num_hosts())
        return 0 < config.quarantine_faults <= record.faults and is_wide and self._completed > record.began

    def completed(self, task_id: str) -> None:
        """Note that an episode of the task got its verdict, so the task did not cause the earlier faults."""
        self._records.pop(task_id, None)
        self._completed += 1

    def refusal(self, task_id: str) -> str | None:
        """Return why the task gets no desktop now; None if it gets one."""
        record = self._records.get(task_id)
        if record is None or record.until is None or record.until <= self._clock():
            return None
        return (
            f"task {task_id} is quarantined for {record.until - self._clock():.0f} s more: its episodes broke desktops "
            f"{record.faults} times, {len(record.slots)} different ones on {len(record.hosts)} hosts, and none was "
            f"completed in between (environment.quarantine_faults={self._config.quarantine_faults}); try it by hand or "
            "leave it out"
        )

    @property
    def task_ids(self) -> list[str]:
        """Return the tasks that are in quarantine now."""
        return [task_id for task_id in self._records if self.refusal(task_id) is not None]
