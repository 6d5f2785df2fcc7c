"""The named Ray actor behind the pool: keeps clean desktops ready and hands them out in turn.

Each slot is one coroutine: boot a desktop, offer it, wait until its holder is done, clean it, again. Calls on a desktop
go from its holder straight to the worker; only leases and counters pass here.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.metrics import LeaseReport, PoolMetrics
from arpo_verl.environments.worker import CLOSE_TIMEOUT_S, DesktopWorker, Reply

logger = logging.getLogger(__name__)
T = TypeVar("T")

# A live worker answers what needs no desktop at once; a busy machine may take a while.
ANSWER_TIMEOUT_S = 60.0
# Pause before the next boot after failures in a row: 0.5, 1, 2, ... seconds.
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.5, 60.0
# How often leases are checked for dead workers and dead holders.
WATCH_INTERVAL_S = 15.0


@dataclass(frozen=True)
class Grant:
    """A lease as its holder gets it, or the reason why there will be none."""

    lease_id: str = ""
    worker: ActorHandle | None = None
    index: int = -1
    generation: int = 0
    error: str | None = None
    message: str = ""


_GIVEN_UP = Grant(error="DesktopLostError", message="the lease was given up")


@dataclass
class _Waiter:
    grant: asyncio.Future[Grant]
    since: float = field(default_factory=time.monotonic)


@dataclass
class _Desktop:
    """A booted desktop, ready or leased; `done` gets the holder's report."""

    worker: ActorHandle
    index: int
    generation: int
    done: asyncio.Future[LeaseReport]
    leased_at: float = 0.0


class DesktopCoordinator:
    """Owns the workers and the queue of those who wait. An asyncio actor: all its state is one event loop's."""

    def __init__(self, config: EnvironmentConfig):
        self._config = config
        self._metrics = PoolMetrics(config.num_desktops)
        self._workers: dict[int, ActorHandle] = {}
        self._generations = dict.fromkeys(range(config.num_desktops), 1)
        self._ready: deque[_Desktop] = deque()
        self._leased: dict[str, _Desktop] = {}
        self._waiters: OrderedDict[str, _Waiter] = OrderedDict()
        self._given_up: set[str] = set()
        self._tasks: list[asyncio.Task] = []
        self._boot_failures = 0
        self._refusal: Grant | None = None

    # --- What clients call -------------------------------------------------------------------------------------

    async def start(self, config: EnvironmentConfig) -> str:
        """Boot desktops ahead of the first lease. Returns why `config` does not fit this pool, or ''."""
        if not self._tasks:
            coroutines = [self._serve(index) for index in range(self._config.num_desktops)]
            self._tasks = [asyncio.create_task(c) for c in (*coroutines, self._watch())]
        if config != self._config:
            return f"this job's desktop pool was made with another environment section: {self._config}, now {config}"
        return ""

    async def acquire(self, lease_id: str) -> Grant:
        """Wait in turn for a clean desktop."""
        if self._refusal is not None:
            return self._refusal
        if lease_id in self._given_up:
            self._given_up.discard(lease_id)
            return _GIVEN_UP
        waiter = _Waiter(asyncio.get_running_loop().create_future())
        self._waiters[lease_id] = waiter
        self._match()
        return await waiter.grant

    async def release(self, lease_id: str, report: LeaseReport) -> None:
        """End a lease, or leave the queue: clients that are cancelled cannot know which of the two it is."""
        waiter = self._waiters.pop(lease_id, None)
        if waiter is not None:
            waiter.grant.set_result(_GIVEN_UP)
        elif lease_id in self._leased:
            self._end_lease(lease_id, report)
        else:  # Ray may run the release of a cancelled client before its acquire.
            self._given_up.add(lease_id)

    async def report_drop(self, task_id: str) -> None:
        """Count a session that was given up after faults."""
        logger.warning("a session of task %s was dropped after desktop faults", task_id)
        self._metrics.session_dropped()

    async def metrics(self) -> dict[str, float]:
        """Counters since the last call, and how many desktops and how many rollouts wait for the other now."""
        now = {"desktops_ready": len(self._ready), "rollouts_waiting": len(self._waiters)}
        return self._metrics.collect() | {f"environment/{name}": float(number) for name, number in now.items()}

    async def close(self) -> None:
        """Close every desktop. The pool serves nobody afterwards."""
        self._refuse("DesktopBootError", "the desktop pool is closed")
        for task in self._tasks:
            task.cancel()
        closing = [_bounded(worker.close.remote(), CLOSE_TIMEOUT_S + 5) for worker in self._workers.values()]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.warning("a desktop worker did not close in order: %s", outcome)
        for worker in self._workers.values():
            ray.kill(worker)

    # --- A slot's life -----------------------------------------------------------------------------------------

    async def _serve(self, index: int) -> None:
        failures = 0
        while self._refusal is None:
            worker, started = self._worker(index), time.monotonic()
            reply = await self._boot(worker, index)
            if reply.error is None:
                failures = self._boot_failures = 0
                self._metrics.call_done("boot", time.monotonic() - started)
                report = await self._offer(worker, index)
                if report.fault is None:
                    continue
            else:
                failures += 1
                self._boot_failed(reply, index)
                await asyncio.sleep(min(BACKOFF_FIRST_S * 2 ** (failures - 1), BACKOFF_MAX_S))
            await self._renew(worker, index)

    async def _boot(self, worker: ActorHandle, index: int) -> Reply:
        timeout_s = self._config.boot_timeout_s
        try:
            return await _bounded(worker.prepare.remote(index, self._generations[index]), timeout_s)
        except asyncio.TimeoutError:
            return Reply(error="DesktopBootError", message=f"desktop {index} did not boot within {timeout_s:g} s")
        except ray.exceptions.RayError as error:
            return Reply(error="DesktopBootError", message=f"the worker of desktop {index} failed: {error}")

    async def _offer(self, worker: ActorHandle, index: int) -> LeaseReport:
        done = asyncio.get_running_loop().create_future()
        self._ready.append(_Desktop(worker, index, self._generations[index], done))
        self._match()
        return await done

    async def _renew(self, worker: ActorHandle, index: int) -> None:
        """Have the worker throw the desktop away; a worker that does not even do that is replaced."""
        try:
            self._generations[index] = await _bounded(worker.renew.remote(index), ANSWER_TIMEOUT_S)
        except (ray.exceptions.RayError, asyncio.TimeoutError):
            self._replace(worker, index)

    def _boot_failed(self, reply: Reply, index: int) -> None:
        self._boot_failures += 1
        self._metrics.fault("DesktopBootError")
        logger.warning("desktop %d did not boot: %s", index, reply.message)
        if reply.error == "ConfigError":
            self._refuse("ConfigError", reply.message)
        elif self._boot_failures >= self._config.max_boot_failures and not self._ready and not self._leased:
            message = f"{self._boot_failures} boots failed in a row and no desktop is alive; the last: {reply.message}"
            self._answer_all(Grant(error="DesktopBootError", message=message))

    # --- Leases ------------------------------------------------------------------------------------------------

    def _match(self) -> None:
        while self._ready and self._waiters:
            lease_id, waiter = self._waiters.popitem(last=False)
            desktop = self._ready.popleft()
            desktop.leased_at = time.monotonic()
            self._leased[lease_id] = desktop
            self._metrics.lease_began(lease_id, time.monotonic() - waiter.since)
            waiter.grant.set_result(Grant(lease_id, desktop.worker, desktop.index, desktop.generation))

    def _end_lease(self, lease_id: str, report: LeaseReport) -> None:
        self._metrics.lease_ended(lease_id, report)
        self._leased.pop(lease_id).done.set_result(report)

    def _refuse(self, error: str, message: str) -> None:
        """Answer everybody who waits, and who ever will, with an error: waiting would be in vain."""
        self._refusal = Grant(error=error, message=message)
        self._answer_all(self._refusal)

    def _answer_all(self, grant: Grant) -> None:
        while self._waiters:
            _, waiter = self._waiters.popitem(last=False)
            waiter.grant.set_result(grant)

    async def _watch(self) -> None:
        """End the leases of dead workers and of holders that have not been heard of for long."""
        interval_s = min(WATCH_INTERVAL_S, self._config.lease_idle_timeout_s / 2)
        while True:
            await asyncio.sleep(interval_s)
            for worker in {desktop.worker for desktop in self._leased.values()}:
                await self._check(worker)

    async def _check(self, worker: ActorHandle) -> None:
        try:
            idle_s = await _bounded(worker.ping.remote(), ANSWER_TIMEOUT_S)
        except (ray.exceptions.RayError, asyncio.TimeoutError):
            idle_s = None
        for lease_id, desktop in list(self._leased.items()):
            if desktop.worker != worker:
                continue
            if idle_s is None:
                self._end_lease(lease_id, LeaseReport(fault="DesktopLostError"))
                continue
            unused_s = min(idle_s[desktop.index], time.monotonic() - desktop.leased_at)
            if unused_s > self._config.lease_idle_timeout_s:
                logger.warning("desktop %d was not used for %.0f s: taken back", desktop.index, unused_s)
                self._metrics.lease_reclaimed()
                self._end_lease(lease_id, LeaseReport(fault="DesktopLostError"))

    # --- Workers -----------------------------------------------------------------------------------------------

    def _worker(self, index: int) -> ActorHandle:
        """The worker process that hosts the slot; started when first needed."""
        number = index // self._config.desktops_per_worker
        if number not in self._workers:
            first = number * self._config.desktops_per_worker
            hosted = range(first, min(first + self._config.desktops_per_worker, self._config.num_desktops))
            generations = {i: self._generations[i] for i in hosted}
            self._workers[number] = _worker_class(self._config).remote(self._config, generations)
        return self._workers[number]

    def _replace(self, dead: ActorHandle, index: int) -> None:
        """Forget a worker that died; the next `_worker` starts another. Its desktops get fresh generations."""
        number = index // self._config.desktops_per_worker
        if self._workers.get(number) != dead:
            return
        logger.warning("desktop worker %d died; starting another", number)
        del self._workers[number]
        ray.kill(dead)
        first = number * self._config.desktops_per_worker
        for i in range(first, min(first + self._config.desktops_per_worker, self._config.num_desktops)):
            self._generations[i] += 1


def _worker_class(config: EnvironmentConfig) -> Any:
    resources = dict(config.worker_resources)
    options: dict[str, Any] = {
        "num_cpus": resources.pop("CPU", 0),
        # Every desktop may have a call running, and leases are checked besides.
        "max_concurrency": 4 * config.desktops_per_worker + 16,
    }
    if "memory" in resources:
        options["memory"] = resources.pop("memory")
    if resources:
        options["resources"] = resources
    if config.py_executable is not None:
        options["runtime_env"] = {"py_executable": config.py_executable}
    return ray.remote(DesktopWorker).options(**options)


async def _bounded(ref: Awaitable[T], timeout_s: float) -> T:
    return await asyncio.wait_for(_awaited(ref), timeout_s)


async def _awaited(ref: Awaitable[T]) -> T:
    return await ref


def new_lease_id() -> str:
    return uuid.uuid4().hex
