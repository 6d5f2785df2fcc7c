"""Which hosts are trusted with desktops: a circuit breaker each. Pure.

A host on which everything fails at once would otherwise draw the leases: its desktops are free again long before any
other's. So one whose boots or leases fail in a row rests. After a pause one probe goes there, and when that fails too,
the next after a longer one; one success ends it.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

# In a row: a bad desktop or two is no bad host.
FAULTS_TO_REST = 3
# Of leases, that many tasks must have been under them: a task that no desktop can set up is not its host's fault.
TASKS_TO_REST = 2
# Pauses before the probes: 5, 10, 20, 30, 30, ... seconds. A probe costs a boot, or an attempt that does not count.
REST_FIRST_S, REST_MAX_S = 5.0, 30.0
# Leases that are remembered as not counting; a session asks right after its fault.
_REMEMBERED = 10_000


@dataclass
class _Circuit:
    """One way in which a host may fail: closed, or open until a time, after which it takes one probe at a time."""

    faults: list[tuple[str, str]] = field(default_factory=list)
    """In a row, since the last success: (task, lease), both '' for a boot."""
    rests: int = 0
    """Since it was last closed."""
    until: float = 0.0
    probe: str | None = None
    last: str = ""
    """What the last fault said."""

    def may_try(self, now: float) -> bool:
        return not self.rests or (self.probe is None and now >= self.until)

    def fail(self, now: float, tasks_needed: int) -> bool:
        """Whether it opens with this fault, which is in `faults` already, or stays open for longer."""
        if not self.rests:
            tasks = {task for task, _ in self.faults}
            if len(self.faults) < FAULTS_TO_REST or len(tasks) < tasks_needed:
                return False
        elif now < self.until:
            return False  # began before it opened: this says nothing new
        self.rests += 1
        self.until = now + min(REST_FIRST_S * 2 ** (self.rests - 1), REST_MAX_S)
        return True


@dataclass
class _Host:
    name: str
    boots: _Circuit = field(default_factory=_Circuit)
    leases: _Circuit = field(default_factory=_Circuit)
    misconfigured: str = ""

    @property
    def resting(self) -> str:
        """Why it rests; '' when it does not."""
        if self.misconfigured:
            return f"cannot make desktops as it is set up: {self.misconfigured}"
        for circuit, what in ((self.boots, "boots"), (self.leases, "episodes' attempts")):
            if circuit.rests:
                return f"{what} fail one after the other, the last: {circuit.last}"
        return ""


class Hosts:
    """What boots and leases came to on each host, by its node's id.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._hosts: dict[str, _Host] = {}
        self._forgiven: OrderedDict[str, None] = OrderedDict()
        # By task, the hosts on which it has failed since it was last set up anywhere; those with which another task did
        # better since are its suspects' witnesses, and its own faults say nothing about a host any more.
        self._failed_on: defaultdict[str, set[str]] = defaultdict(set)
        self._suspects: set[str] = set()

    # --- Boots ---------------------------------------------------------------------------------------------------

    def may_boot(self, node_id: str) -> bool:
        """Whether a desktop may boot there now; a probe of a resting host is begun with the asking."""
        host = self._hosts.get(node_id)
        if host is None or not host.boots.rests:
            return True
        if not host.boots.may_try(self._clock()):
            return False
        host.boots.probe = "boot"
        return True

    def booted(self, node_id: str) -> None:
        host = self._hosts.get(node_id)
        if host is not None:
            host.misconfigured = ""
            self._close(host, "boots")

    def boot_failed(self, node_id: str, name: str, message: str, misconfigured: bool = False) -> None:
        """Count a boot that failed.

        Args:
            name: the host's, for people.
            misconfigured: its own set-up forbids desktops: it rests at once.
        """
        host = self._hosts.setdefault(node_id, _Host(name))
        was_told = bool(host.resting)
        host.boots.probe, host.boots.last = None, message
        host.boots.faults.append(("", ""))
        if misconfigured:
            host.misconfigured = message
            host.boots.rests, host.boots.until = host.boots.rests + 1, self._clock() + REST_MAX_S
        else:
            host.boots.fail(self._clock(), tasks_needed=1)
        self._tell(host, was_told)

    def boot_given_up(self, node_id: str) -> None:
        """A boot that was allowed did not come to an end that says anything."""
        host = self._hosts.get(node_id)
        if host is not None:
            host.boots.probe = None

    # --- Leases --------------------------------------------------------------------------------------------------

    def rank(self, node_id: str) -> int | None:
        """How well a desktop of that host may be leased now: 0 is best, None not at all."""
        host = self._hosts.get(node_id)
        if host is None:
            return 0
        return (1 if host.resting else 0) if host.leases.may_try(self._clock()) else None

    def leased(self, node_id: str, lease_id: str) -> None:
        """Note which lease is the probe of a resting host."""
        host = self._hosts.get(node_id)
        if host is not None and host.leases.rests:
            host.leases.probe = lease_id

    def set_up(self, node_id: str, task_id: str) -> None:
        """A task was set up there: the host works."""
        self._failed_on.pop(task_id, None)
        self._suspects.discard(task_id)
        self._suspects |= {task for task, nodes in self._failed_on.items() if node_id in nodes}
        host = self._hosts.get(node_id)
        if host is not None:
            self._close(host, "leases")

    def lease_failed(self, node_id: str, name: str, task_id: str, lease_id: str, message: str) -> float | None:
        """Count an attempt that ended with a fault.

        Returns:
            The seconds for which the host rests now; None where it does not.
        """
        host = self._hosts.setdefault(node_id, _Host(name))
        circuit, was_told = host.leases, bool(host.resting)
        if circuit.probe == lease_id:
            circuit.probe = None
        if task_id not in self._suspects:
            self._failed_on[task_id].add(node_id)
            circuit.faults.append((task_id, lease_id))
            circuit.last = message
            circuit.fail(self._clock(), TASKS_TO_REST)
            if host.resting:
                for _, each in circuit.faults:
                    self._forgive(each)
                circuit.faults.clear()
        self._tell(host, was_told)
        return max(0.0, circuit.until - self._clock()) if circuit.rests else None

    def lease_ended(self, node_id: str, lease_id: str) -> None:
        """A lease ended by no fault; one that was the probe leaves its turn to the next."""
        host = self._hosts.get(node_id)
        if host is not None and host.leases.probe == lease_id:
            host.leases.probe = None

    def is_forgiven(self, lease_id: str) -> bool:
        """Whether the lease's fault was its host's, and no attempt of the session."""
        return lease_id in self._forgiven

    # --- What it looks like -----------------------------------------------------------------------------------------

    def is_resting(self, node_id: str) -> bool:
        host = self._hosts.get(node_id)
        return host is not None and bool(host.resting)

    def leases_rest(self, node_id: str) -> bool:
        host = self._hosts.get(node_id)
        return host is not None and host.leases.rests > 0

    def is_given_up(self, node_id: str) -> bool:
        """Whether not even the first probe of its boots came up: its desktops may move, where there is room."""
        host = self._hosts.get(node_id)
        return host is not None and (host.boots.rests > 1 or bool(host.misconfigured))

    def misconfigured(self, node_ids: Iterable[str]) -> bool:
        """Whether all of these hosts say that they cannot make desktops as they are set up."""
        hosts = [self._hosts.get(node_id) for node_id in node_ids]
        return bool(hosts) and all(host is not None and host.misconfigured for host in hosts)

    def forget_all_but(self, node_ids: Iterable[str]) -> None:
        """Forget hosts that have no desktops any more."""
        kept = set(node_ids)
        self._hosts = {node_id: host for node_id, host in self._hosts.items() if node_id in kept}

    @property
    def are_probed(self) -> bool:
        """Whether an episode is being tried on a host that rests."""
        return any(host.leases.probe is not None for host in self._hosts.values())

    @property
    def resting(self) -> dict[str, str]:
        """By name, why each host that rests does so."""
        return {host.name: host.resting for host in self._hosts.values() if host.resting}

    # -------------------------------------------------------------------------------------------------------------

    def _forgive(self, lease_id: str) -> None:
        self._forgiven[lease_id] = None
        while len(self._forgiven) > _REMEMBERED:
            self._forgiven.popitem(last=False)

    def _close(self, host: _Host, circuit: str) -> None:
        was_resting = bool(host.resting)
        setattr(host, circuit, _Circuit())
        if was_resting and not host.resting:
            logger.warning("host %s works again", host.name)

    def _tell(self, host: _Host, was_told: bool) -> None:
        if host.resting and not was_told:
            logger.warning("host %s rests, and is tried now and then: it %s", host.name, host.resting)
