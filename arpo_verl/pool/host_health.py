"""A circuit breaker for each host decides whether the pool may boot and lease desktops there. Pure.

A host on which everything fails at once would otherwise attract the leases: its desktops are free again long before any
other's. So a host rests when its boots or its leases fail in a row. After a pause one probe goes there. If that fails
too, the next probe follows after a longer pause; one success ends the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

# Faults in a row: one or two bad desktops do not make a bad host.
FAULTS_TO_REST = 3
# Failed leases must be of so many tasks: if no desktop can set up a task, that is not its host's fault.
TASKS_TO_REST = 2
# Pauses before the probes: 5, 10, 20, 30, 30, ... seconds. A probe costs a boot, or an attempt that does not count.
REST_FIRST_S, REST_MAX_S = 5.0, 30.0


@dataclass
class _Breaker:
    """A breaker is closed, or open until a time; after that it lets one probe through at a time."""

    tasks: list[str] = field(default_factory=list)
    """Tasks of the faults in a row since the last success; "" for a boot."""
    rests: int = 0
    """How often it has opened since it was last closed."""
    until: float = 0.0
    probe: str | None = None
    last: str = ""
    """The last fault's message."""

    def may_try(self, now: float) -> bool:
        return not self.rests or (self.probe is None and now >= self.until)

    def fail(self, now: float, message: str, task_id: str = "", tasks_needed: int = 1) -> None:
        """Count a fault, which may open the breaker, or keep it open for longer."""
        self.last = message
        self.tasks.append(task_id)
        if self.rests:
            is_news = now >= self.until  # otherwise it began before the breaker opened
        else:
            is_news = len(self.tasks) >= FAULTS_TO_REST and len(set(self.tasks)) >= tasks_needed
        if is_news:
            self.open(now + min(REST_FIRST_S * 2 ** min(self.rests, 8), REST_MAX_S))

    def open(self, until: float) -> None:
        self.tasks.clear()
        self.rests, self.until = self.rests + 1, until


@dataclass
class _Host:
    name: str
    boots: _Breaker = field(default_factory=_Breaker)
    leases: _Breaker = field(default_factory=_Breaker)
    misconfigured: str = ""

    @property
    def resting(self) -> str:
        """Return why it rests; '' if it does not."""
        if self.misconfigured:
            return f"cannot make desktops with its set-up: {self.misconfigured}"
        for breaker, what in ((self.boots, "boots"), (self.leases, "episodes' attempts")):
            if breaker.rests:
                return f"{what} fail one after the other, the last with: {breaker.last}"
        return ""


class HostHealth:
    """This notes which boots and leases failed on each host, by its node's id.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._health: dict[str, _Host] = {}

    # --- Boots ---------------------------------------------------------------------------------------------------

    def may_boot(self, node_id: str) -> bool:
        """Return whether a desktop may boot there now; on a resting host, this call begins the probe."""
        host = self._health.get(node_id)
        if host is None or not host.boots.rests:
            return True
        if not host.boots.may_try(self._clock()):
            return False
        host.boots.probe = "boot"
        return True

    def booted(self, node_id: str) -> None:
        host = self._health.get(node_id)
        if host is not None:
            host.misconfigured = ""
            self._close(host, "boots")

    def boot_failed(self, node_id: str, name: str, message: str, misconfigured: bool = False) -> None:
        """Count a failed boot.

        Args:
            name: the host's name, for people.
            misconfigured: whether the host's own set-up forbids desktops: then it rests at once.
        """
        host = self._health.setdefault(node_id, _Host(name))
        was_resting = bool(host.resting)
        host.boots.probe = None
        if misconfigured:
            host.misconfigured = host.boots.last = message
            host.boots.open(self._clock() + REST_MAX_S)
        else:
            host.boots.fail(self._clock(), message)
        self._warn(host, was_resting)

    def boot_given_up(self, node_id: str) -> None:
        """Note that an allowed boot ended without any result."""
        host = self._health.get(node_id)
        if host is not None:
            host.boots.probe = None

    # --- Leases --------------------------------------------------------------------------------------------------

    def rank(self, node_id: str) -> int | None:
        """Return how good a desktop of that host is for a lease now: 0 is best, None forbids it."""
        host = self._health.get(node_id)
        if host is None:
            return 0
        return (1 if host.resting else 0) if host.leases.may_try(self._clock()) else None

    def leased(self, node_id: str, lease_id: str) -> None:
        """Note which lease is the probe of a resting host."""
        host = self._health.get(node_id)
        if host is not None and host.leases.rests:
            host.leases.probe = lease_id

    def set_up(self, node_id: str) -> None:
        """Note that a task was set up there, so the host works."""
        host = self._health.get(node_id)
        if host is not None:
            self._close(host, "leases")

    def lease_failed(
        self, node_id: str, name: str, task_id: str, message: str, is_suspect: bool = False
    ) -> float | None:
        """Count an attempt that ended with a fault.

        Args:
            name: the host's name, for people.
            is_suspect: whether the task itself may be to blame: then it puts no host to rest, but it does not make a
                probe succeed either.

        Returns:
            The seconds until the next probe of the host's leases; None if they do not rest.
        """
        host = self._health.setdefault(node_id, _Host(name))
        was_resting = bool(host.resting)
        if host.leases.rests or not is_suspect:
            host.leases.fail(self._clock(), message, task_id, TASKS_TO_REST)
        self._warn(host, was_resting)
        return max(0.0, host.leases.until - self._clock()) if host.leases.rests else None

    def lease_ended(self, node_id: str, lease_id: str) -> None:
        """Note the end of a lease; if it was the probe, the next lease may probe."""
        host = self._health.get(node_id)
        if host is not None and host.leases.probe == lease_id:
            host.leases.probe = None

    # --- What it looks like -----------------------------------------------------------------------------------------

    def is_resting(self, node_id: str) -> bool:
        host = self._health.get(node_id)
        return host is not None and bool(host.resting)

    def is_given_up(self, node_id: str) -> bool:
        """Return whether even the first probe of its boots failed: then its desktops may move to a host with room."""
        host = self._health.get(node_id)
        return host is not None and (host.boots.rests > 1 or bool(host.misconfigured))

    def misconfigured(self, node_ids: Iterable[str]) -> bool:
        """Return whether the set-up of all of these hosts forbids desktops."""
        hosts = [self._health.get(node_id) for node_id in node_ids]
        return bool(hosts) and all(host is not None and host.misconfigured for host in hosts)

    def forget_all_but(self, node_ids: Iterable[str]) -> None:
        """Forget hosts that have no desktops any more."""
        kept = set(node_ids)
        self._health = {node_id: host for node_id, host in self._health.items() if node_id in kept}

    @property
    def resting(self) -> dict[str, str]:
        """Return why each resting host rests, by its name."""
        return {host.name: host.resting for host in self._health.values() if host.resting}

    # -------------------------------------------------------------------------------------------------------------

    def _close(self, host: _Host, breaker: str) -> None:
        was_resting = bool(host.resting)
        setattr(host, breaker, _Breaker())
        if was_resting and not host.resting:
            logger.warning("host %s works again", host.name)

    def _warn(self, host: _Host, was_resting: bool) -> None:
        if host.resting and not was_resting:
            logger.warning("host %s rests, and gets a probe now and then: it %s", host.name, host.resting)
