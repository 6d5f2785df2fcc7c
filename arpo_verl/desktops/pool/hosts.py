"""Which hosts are dropped, because they failed several boots or set-ups in a row. Pure.

A host on which everything fails at once would attract the leases: its desktops are free again long before any other's.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

FAULTS_TO_DROP = 3
"""Failures in a row, since one or two bad desktops make no bad host. Set-ups must be of two tasks: if no desktop can
set up a task, that is not its host's fault."""
ASK_INTERVAL_S = 30.0
"""Pause between two desktops that ask a dropped host whether it works again."""


@dataclass
class _Host:
    name: str
    failures: list[str] = field(default_factory=list)
    """The failures in a row: the task of a set-up, "" for a boot."""
    last: str = ""
    """What failed last, and how."""
    is_dropped: bool = False
    is_misconfigured: bool = False
    is_asked: bool = False
    """Whether a desktop is finding out now if the host works again."""
    ask_at: float = -math.inf
    set_ups: int = 0
    suspects: dict[str, int] = field(default_factory=dict)
    """Tasks whose set-up failed here: `set_ups` when the first such attempt began."""


class Hosts:
    """The failures of each host, by its node's id.

    A dropped host gets one desktop at a time: it boots, then it is leased. If that fails, the next follows after
    `ASK_INTERVAL_S`. The first task that is set up brings the host back, as does a boot if only boots had failed.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._hosts: dict[str, _Host] = {}

    # --- What may begin -------------------------------------------------------------------------------------------

    def may_use(self, node_id: str) -> bool:
        """Return whether a boot or a lease may begin there now."""
        host = self._known(node_id)
        return not host.is_dropped or (not host.is_asked and self._clock() >= host.ask_at)

    def ask(self, node_id: str) -> bool:
        """Note that a boot or a lease begins; return whether it asks a dropped host, so that `answered` must follow."""
        host = self._known(node_id)
        if host.is_dropped:
            host.is_asked = True
        return host.is_dropped

    def answered(self, node_id: str) -> None:
        """Note the end of a boot or a lease that asked a dropped host."""
        host = self._known(node_id)
        host.is_asked, host.ask_at = False, self._clock() + ASK_INTERVAL_S

    def set_ups(self, node_id: str) -> int:
        """Return how many tasks have been set up there."""
        return self._known(node_id).set_ups

    # --- How it ended ---------------------------------------------------------------------------------------------

    def booted(self, node_id: str) -> None:
        """Note a boot: the desktop may be leased at once."""
        host = self._known(node_id)
        host.failures = [task_id for task_id in host.failures if task_id]
        host.is_misconfigured, host.ask_at = False, -math.inf
        self._drop(host, host.is_dropped and bool(host.failures))

    def set_up(self, node_id: str, name: str, task_id: str) -> None:
        """Note that a task was set up, so the host works, and the task too."""
        host = self._host(node_id, name)
        host.set_ups += 1
        host.suspects.pop(task_id, None)
        host.failures.clear()
        self._drop(host, False)

    def boot_failed(self, node_id: str, name: str, message: str, is_misconfigured: bool = False) -> None:
        """Count a failed boot; one that the host's own set-up forbids drops it at once."""
        host = self._host(node_id, name)
        host.is_misconfigured = is_misconfigured
        self._count(host, "", f"a boot failed: {message}")

    def set_up_failed(self, node_id: str, name: str, task_id: str, set_ups: int, message: str) -> bool:
        """Count a failed set-up for its host, unless other tasks have been set up there since the task first failed.

        Args:
            set_ups: the host's `set_ups` when the attempt began.

        Returns:
            Whether the host is to blame: it is dropped, for what other tasks met too.
        """
        host = self._host(node_id, name)
        if host.set_ups > host.suspects.setdefault(task_id, set_ups):
            return False
        self._count(host, task_id, f"the set-up of {task_id} failed: {message}")
        return host.is_dropped

    # --- What it looks like ---------------------------------------------------------------------------------------

    def is_dropped(self, node_id: str) -> bool:
        return self._known(node_id).is_dropped

    def boots_none(self, node_id: str) -> bool:
        """Return whether it is dropped for its boots: then its desktops may move to a host with room."""
        host = self._known(node_id)
        return host.is_dropped and "" in host.failures

    def all_misconfigured(self, node_ids: Iterable[str]) -> bool:
        """Return whether the set-up of all of these hosts forbids desktops."""
        misconfigured = [self._known(node_id).is_misconfigured for node_id in node_ids]
        return bool(misconfigured) and all(misconfigured)

    def forget_all_but(self, node_ids: Iterable[str]) -> None:
        """Forget hosts that are gone."""
        kept = set(node_ids)
        self._hosts = {node_id: host for node_id, host in self._hosts.items() if node_id in kept}

    @property
    def dropped(self) -> dict[str, str]:
        """Return what failed last on each dropped host, by its name."""
        return {host.name: host.last for host in self._hosts.values() if host.is_dropped}

    # --------------------------------------------------------------------------------------------------------------

    def _known(self, node_id: str) -> _Host:
        """Return the host; without a failure or a set-up it is one that nobody keeps."""
        return self._hosts.get(node_id) or _Host("")

    def _host(self, node_id: str, name: str) -> _Host:
        return self._hosts.setdefault(node_id, _Host(name))

    def _count(self, host: _Host, task_id: str, message: str) -> None:
        host.last = message
        if task_id not in host.failures or len(host.failures) < FAULTS_TO_DROP:
            host.failures.append(task_id)
        of_many = not task_id or len(set(host.failures)) > 1
        is_bad = host.is_misconfigured or (len(host.failures) >= FAULTS_TO_DROP and of_many)
        self._drop(host, host.is_dropped or is_bad)

    def _drop(self, host: _Host, is_dropped: bool) -> None:
        if is_dropped and not host.is_dropped:
            host.ask_at = self._clock() + ASK_INTERVAL_S
            host.suspects.clear()  # what failed with all the others was the host's fault
            logger.warning("host %s is dropped, and asked now and then if it works again: %s", host.name, host.last)
        elif host.is_dropped and not is_dropped:
            logger.warning("host %s works again", host.name)
        host.is_dropped = is_dropped
