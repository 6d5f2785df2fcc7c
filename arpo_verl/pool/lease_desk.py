"""Who has which desktop, and who waits for one, in turn."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ray.actor import ActorHandle

from arpo_verl.pool.fleet import Worker
from arpo_verl.pool.metrics import TASK_FAULTS, LeaseReport, PoolMetrics
from arpo_verl.pool.quarantine import Quarantine
from arpo_verl.pool.worker import DesktopWorker


@dataclass(frozen=True)
class Grant:
    """A lease as its holder gets it, or the reason why there will be none."""

    actor: ActorHandle[DesktopWorker] | None = None
    index: int = -1
    generation: int = 0
    host: str = ""
    error: str | None = None
    message: str = ""


GIVEN_UP = Grant(error="DesktopLostError", message="the lease was given up")


@dataclass(eq=False)
class ReadyDesktop:
    """A booted desktop, idle or leased; `done` gets its holder's report, or why it ended otherwise."""

    worker: Worker
    index: int
    generation: int
    done: asyncio.Future[LeaseReport] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    leased_at: float = 0.0
    task_id: str = ""

    @property
    def name(self) -> str:
        return f"desktop-{self.index}.{self.generation} on {self.worker.host}"


@dataclass
class _Waiter:
    task_id: str
    grant: asyncio.Future[Grant]
    since: float = field(default_factory=time.monotonic)


class LeaseDesk:
    """Hands idle desktops to those who wait. One event loop's, as the coordinator."""

    def __init__(self, metrics: PoolMetrics, quarantine: Quarantine):
        self.leased: dict[str, ReadyDesktop] = {}
        self.idle: deque[ReadyDesktop] = deque()
        self._metrics = metrics
        self._quarantine = quarantine
        self._waiters: OrderedDict[str, _Waiter] = OrderedDict()
        self._refusal: Grant | None = None
        # Leases that clients gave up before we knew them, and those that we ended before their holders did.
        self._given_up: set[str] = set()
        self._taken_back: set[str] = set()

    # --- Those who want a desktop --------------------------------------------------------------------------------

    async def acquire(self, lease_id: str, task_id: str) -> Grant:
        """Wait in turn for a desktop."""
        if self._refusal is not None:
            return self._refusal
        if lease_id in self._given_up:
            self._given_up.discard(lease_id)
            return GIVEN_UP
        waiter = _Waiter(task_id, asyncio.get_running_loop().create_future())
        self._waiters[lease_id] = waiter
        self._refuse_quarantined(task_id)
        self._match()
        return await waiter.grant

    def release(self, lease_id: str, report: LeaseReport) -> None:
        """End a lease, or leave the queue: clients that are cancelled cannot know which of the two it is."""
        waiter = self._waiters.pop(lease_id, None)
        if waiter is not None:
            waiter.grant.set_result(GIVEN_UP)
            self._count_waiters()
        elif lease_id in self.leased:
            self._judge(self.leased[lease_id], report)
            self._end(lease_id, report)
        elif lease_id in self._taken_back:
            self._taken_back.discard(lease_id)
        else:  # Ray may run the release of a cancelled client before its acquire.
            self._given_up.add(lease_id)

    # --- Those who have one to give ------------------------------------------------------------------------------

    def offer(self, desktop: ReadyDesktop) -> None:
        """Let the desktop be leased."""
        self.idle.append(desktop)
        self._match()

    def withdraw(self, desktop: ReadyDesktop) -> bool:
        """Take an idle desktop out of the offer; False when it is leased, or over."""
        if desktop not in self.idle:
            return False
        self.idle.remove(desktop)
        return True

    def take_back(self, lease_id: str, fault: str) -> None:
        """End a lease that its holder will not end: the task is not to blame."""
        self._taken_back.add(lease_id)
        self._end(lease_id, LeaseReport(fault))

    def host_lost(self, worker: Worker) -> None:
        """End all that a dead worker hosted, idle and leased."""
        fault = "HostLostError"
        for lease_id in [lease_id for lease_id, desktop in self.leased.items() if desktop.worker is worker]:
            self.take_back(lease_id, fault)
        for desktop in [desktop for desktop in self.idle if desktop.worker is worker]:
            self.idle.remove(desktop)
            self._metrics.fault(fault)
            desktop.done.set_result(LeaseReport(fault))

    # --- Bad news ------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._refusal is not None

    @property
    def has_desktops(self) -> bool:
        return bool(self.idle or self.leased)

    def refuse(self, error: str, message: str) -> None:
        """Answer everybody who waits, and who ever will, with an error: waiting would be in vain."""
        self._refusal = Grant(error=error, message=message)
        self.answer_all(error, message)

    def answer_all(self, error: str, message: str) -> None:
        """Answer everybody who waits now with an error."""
        self._answer(list(self._waiters), Grant(error=error, message=message))

    def _refuse_quarantined(self, task_id: str) -> None:
        reason = self._quarantine.refusal(task_id)
        if reason is None:
            return
        refused = [lease_id for lease_id, waiter in self._waiters.items() if waiter.task_id == task_id]
        for _ in refused:
            self._metrics.count("quarantined_sessions")
            self._metrics.count("dropped_sessions")
        self._answer(refused, Grant(error="TaskQuarantinedError", message=reason))

    def _answer(self, lease_ids: list[str], grant: Grant) -> None:
        for lease_id in lease_ids:
            self._waiters.pop(lease_id).grant.set_result(grant)
        self._count_waiters()

    # -------------------------------------------------------------------------------------------------------------

    def _match(self) -> None:
        while self.idle and self._waiters:
            lease_id, waiter = self._waiters.popitem(last=False)
            desktop = self.idle.popleft()
            desktop.leased_at, desktop.task_id = time.monotonic(), waiter.task_id
            self.leased[lease_id] = desktop
            self._metrics.lease_began(desktop.index, time.monotonic() - waiter.since)
            host = desktop.worker.host
            waiter.grant.set_result(Grant(desktop.worker.actor, desktop.index, desktop.generation, host))
        self._count_waiters()

    def _judge(self, desktop: ReadyDesktop, report: LeaseReport) -> None:
        """Put the fault, or the verdict, to the task's account."""
        if report.completed:
            self._quarantine.completed(desktop.task_id)
        elif report.fault in TASK_FAULTS:
            self._quarantine.fault(desktop.task_id, desktop.index)
            self._refuse_quarantined(desktop.task_id)

    def _end(self, lease_id: str, report: LeaseReport) -> None:
        self._metrics.lease_ended(report)
        self.leased.pop(lease_id).done.set_result(report)

    def _count_waiters(self) -> None:
        self._metrics.rollouts_wait(len(self._waiters))


def new_lease_id() -> str:
    return uuid.uuid4().hex
