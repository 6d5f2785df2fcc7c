"""The queue hands desktops to those who wait, the older batch first, and knows each desktop's holder."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ray.actor import ActorHandle

from arpo_verl.desktops.pool.hosts import Hosts
from arpo_verl.desktops.pool.metrics import SET_UP_FAULTS, Fault, LeaseReport, PoolMetrics
from arpo_verl.desktops.pool.worker import DesktopWorker
from arpo_verl.desktops.pool.workers import Worker
from arpo_verl.errors import ArpoError, ConfigError, DesktopLostError, HostLostError


@dataclass(frozen=True)
class Grant:
    """A holder gets this as its lease, or as the reason why there will be none."""

    actor: ActorHandle[DesktopWorker] | None = None
    index: int = -1
    generation: int = 0
    host: str = ""
    node_id: str = ""
    error: ArpoError | None = None


GIVEN_UP = Grant(error=DesktopLostError("the lease was given up"))


@dataclass(eq=False)
class BootedDesktop:
    """A booted desktop, idle or leased; `done` gets its holder's report, or why it ended without one."""

    worker: Worker
    index: int
    generation: int
    done: asyncio.Future[LeaseReport] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    leased_at: float = 0.0
    task_id: str = ""
    is_set_up: bool = False
    """Whether it was set up for its holder's task."""
    is_asking: bool = False
    """Whether its lease asks a dropped host."""
    set_ups: int = 0
    """How many tasks had been set up on its host when its lease began."""

    @property
    def name(self) -> str:
        return f"desktop-{self.index}.{self.generation} on {self.worker.host}"


@dataclass
class _Waiter:
    task_id: str
    grant: asyncio.Future[Grant]
    avoid: Collection[str] = ()
    batch: int = 0
    since: float = field(default_factory=time.monotonic)

    def answer(self, grant: Grant) -> None:
        """Give it the grant, unless it was cancelled."""
        if not self.grant.done():
            self.grant.set_result(grant)


class LeaseQueue:
    """Hands idle desktops to those who wait. Only the pool actor's event loop uses it."""

    def __init__(self, metrics: PoolMetrics, hosts: Hosts):
        self.leased: dict[str, BootedDesktop] = {}
        self.idle: deque[BootedDesktop] = deque()
        self.is_out = False
        """Whether no desktop has served for longer than anybody should wait."""
        self._metrics = metrics
        self._hosts = hosts
        self._waiters: OrderedDict[str, _Waiter] = OrderedDict()
        self._booting: Counter[str] = Counter()
        """Desktops that boot or are being cleaned, by node."""
        self._refusal: Grant | None = None
        # Leases that clients gave up before we knew them, and leases that we ended before their holders did.
        self._given_up: set[str] = set()
        self._taken_back: set[str] = set()

    # --- Those who want a desktop --------------------------------------------------------------------------------

    async def acquire(self, lease_id: str, task_id: str, avoid: Collection[str] = (), batch: int = 0) -> Grant:
        """Wait in turn for a desktop, and take one of the nodes in `avoid` only if there are no others."""
        if self._refusal is not None:
            return self._refusal
        if lease_id in self._given_up:
            self._given_up.discard(lease_id)
            return GIVEN_UP
        waiter = _Waiter(task_id, asyncio.get_running_loop().create_future(), avoid, batch)
        self._waiters[lease_id] = waiter
        self.match()
        try:
            return await waiter.grant
        except asyncio.CancelledError:  # Ray cancels it with the rollout's own task
            if self._waiters.pop(lease_id, None) is not None:
                self._taken_back.add(lease_id)
                self._count_waiters()
            elif lease_id in self.leased:  # just granted
                self._taken_back.add(lease_id)
                self._end(lease_id, LeaseReport())
            raise

    def release(self, lease_id: str, report: LeaseReport) -> bool:
        """End a lease, or leave the queue: a cancelled client cannot know which of the two it needs.

        Returns:
            Whether the lease counts as an attempt of its session. It does not if the set-up failed because of a dropped
            host, unless all hosts have been dropped for too long. After the set-up it always counts, since the policy
            may have broken the desktop.
        """
        is_attempt = True
        waiter = self._waiters.pop(lease_id, None)
        if waiter is not None:
            waiter.answer(GIVEN_UP)
            self._count_waiters()
        elif lease_id in self.leased:
            is_attempt = not self._is_hosts_fault(self.leased[lease_id], report) or self.is_out
            self._end(lease_id, report)
        elif lease_id in self._taken_back:
            self._taken_back.discard(lease_id)
        else:  # Ray may run a cancelled client's release before its acquire.
            self._given_up.add(lease_id)
        return is_attempt

    def was_set_up(self, lease_id: str) -> None:
        """Note that a lease's task was set up, so its host works."""
        if lease_id in self.leased:
            desktop = self.leased[lease_id]
            desktop.is_set_up = True
            self._hosts.set_up(desktop.worker.node_id, desktop.worker.host, desktop.task_id)
            self.match()  # the host may be back

    # --- Those who have one to give ------------------------------------------------------------------------------

    def offer(self, desktop: BootedDesktop) -> None:
        """Offer the desktop for leases."""
        self.idle.append(desktop)
        self.match()

    @contextmanager
    def boots(self, node_id: str) -> Iterator[None]:
        """Note that a desktop boots on that node during the block, or waits for its turn: those who avoid all other
        nodes wait for it."""
        self._booting[node_id] += 1
        try:
            yield
        finally:
            self._booting[node_id] -= 1
            asyncio.get_running_loop().call_soon(self.match)  # after it was offered, if it came up

    def withdraw(self, desktop: BootedDesktop) -> bool:
        """Take back the offer of an idle desktop; return False if it is leased or has ended."""
        if desktop not in self.idle:
            return False
        self.idle.remove(desktop)
        return True

    def recall(self, desktop: BootedDesktop) -> None:
        """End a desktop, idle or leased: its worker cannot look after it any more."""
        self.withdraw(desktop)
        for lease_id in [lease_id for lease_id, leased in self.leased.items() if leased is desktop]:
            self.take_back(lease_id, DesktopLostError)

    def take_back(self, lease_id: str, fault: Fault) -> None:
        """End a lease that its holder will not end, without blaming the task."""
        self._taken_back.add(lease_id)
        self._end(lease_id, LeaseReport(fault))

    def host_lost(self, worker: Worker) -> None:
        """End all desktops of a dead worker, idle and leased."""
        for desktop in [desktop for desktop in self.idle if desktop.worker is worker]:
            self.idle.remove(desktop)
            self._metrics.fault(HostLostError)
            desktop.done.set_result(LeaseReport(HostLostError))
        for lease_id in [lease_id for lease_id, desktop in self.leased.items() if desktop.worker is worker]:
            self.take_back(lease_id, HostLostError)

    # --- Bad news ------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._refusal is not None

    @property
    def refusal(self) -> str:
        """Return the mistake of the recipe because of which nobody is ever served, or ''."""
        error = self._refusal.error if self._refusal is not None else None
        return str(error) if isinstance(error, ConfigError) else ""

    @property
    def is_serving(self) -> bool:
        """Return whether a leased desktop was set up for its task."""
        return any(desktop.is_set_up for desktop in self.leased.values())

    @property
    def is_wanted(self) -> bool:
        """Return whether anybody has a desktop or waits for one."""
        return bool(self.leased or self._waiters)

    def may_lease_on(self, node_id: str) -> bool:
        """Return whether somebody waits while a desktop of that node is idle."""
        return bool(self._waiters) and any(desktop.worker.node_id == node_id for desktop in self.idle)

    def is_at_work(self, worker: Worker) -> bool:
        """Return whether a desktop of the worker is leased."""
        return any(desktop.worker is worker for desktop in self.leased.values())

    def refuse(self, error: ArpoError) -> None:
        """Answer everybody who waits now or later with an error, since no desktop will come."""
        self._refusal = Grant(error=error)
        self.answer_all(error)

    def answer_all(self, error: ArpoError) -> None:
        """Answer everybody who waits now with an error."""
        for waiter in self._waiters.values():
            waiter.answer(Grant(error=error))
        self._waiters.clear()
        self._count_waiters()

    # -------------------------------------------------------------------------------------------------------------

    def match(self) -> None:
        """Lease idle desktops to those who wait."""
        for lease_id, waiter in self._in_turn() if self.idle else ():
            if not self.idle:
                break
            desktop = self._choose(waiter)
            if desktop is None:
                continue
            del self._waiters[lease_id]
            self.idle.remove(desktop)
            desktop.leased_at, desktop.task_id = time.monotonic(), waiter.task_id
            self.leased[lease_id] = desktop
            worker = desktop.worker
            desktop.is_asking = self._hosts.ask(worker.node_id)
            desktop.set_ups = self._hosts.set_ups(worker.node_id)
            self._metrics.lease_began(desktop.index, time.monotonic() - waiter.since)
            waiter.grant.set_result(Grant(worker.actor, desktop.index, desktop.generation, worker.host, worker.node_id))
        self._count_waiters()

    def _in_turn(self) -> list[tuple[str, _Waiter]]:
        """Return those who wait, by batch, and in a batch in the order in which they came."""
        waiting = [(lease_id, waiter) for lease_id, waiter in self._waiters.items() if not waiter.grant.done()]
        return sorted(waiting, key=lambda one: one[1].batch)

    def _choose(self, waiter: _Waiter) -> BootedDesktop | None:
        """Return the waiter's desktop, the one that is idle for longest; None lets it wait for another.

        It waits for a host that has not failed it, as long as one has desktops and is not dropped. A dropped host is
        asked only if no other has a desktop now.
        """
        usable = [desktop for desktop in self.idle if self._hosts.may_use(desktop.worker.node_id)]
        others = [desktop for desktop in usable if desktop.worker.node_id not in waiter.avoid]
        if not others and waiter.avoid:
            to_come = {desktop.worker.node_id for desktop in self.leased.values()} | set(+self._booting)
            if any(not self._hosts.is_dropped(node_id) for node_id in to_come.difference(waiter.avoid)):
                return None
        return min(others or usable, key=lambda each: self._hosts.is_dropped(each.worker.node_id), default=None)

    def _is_hosts_fault(self, desktop: BootedDesktop, report: LeaseReport) -> bool:
        """Count a failed set-up for its host; return whether it is the host's fault."""
        if report.was_set_up or report.fault not in SET_UP_FAULTS:
            return False
        worker, message = desktop.worker, f"{report.fault.__name__}: {report.message}"
        return self._hosts.set_up_failed(worker.node_id, worker.host, desktop.task_id, desktop.set_ups, message)

    def _end(self, lease_id: str, report: LeaseReport) -> None:
        desktop = self.leased.pop(lease_id)
        self._metrics.lease_ended(report)
        if desktop.is_asking:
            self._hosts.answered(desktop.worker.node_id)
        desktop.done.set_result(report)

    def _count_waiters(self) -> None:
        self._metrics.rollouts_wait(len(self._waiters))
