"""A slot's life: find a place, boot a desktop, offer it, wait until its holder is done, clean it, and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, defaultdict

import ray

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.hosts import Hosts
from arpo_verl.desktops.pool.lease_queue import BootedDesktop, LeaseQueue
from arpo_verl.desktops.pool.metrics import IDLE, DesktopState, LeaseReport, PoolMetrics
from arpo_verl.desktops.pool.worker import CallResult
from arpo_verl.desktops.pool.workers import Worker, Workers, bounded
from arpo_verl.errors import ConfigError, DesktopBootError, DesktopLostError, HostLostError

logger = logging.getLogger(__name__)

# A live worker answers calls that need no desktop at once; on a busy machine it may take a while.
ANSWER_TIMEOUT_S = 60.0
# At the start of a job an engine or a node may still be starting, so that all desktops fail together: eight failures in
# a row then count as one.
FIRST_BOOT_S = 60.0
# How often a slot that may not boot yet asks again, if no boot ends before.
RETRY_INTERVAL_S = 1.0
# The share of a host's desktops that may boot at once, but at least so many. With this share nobody waits as long as
# boots take up to one and a half times as long as episodes.
BOOT_SHARE, FEWEST_BOOTS = 3 / 5, 8
# Pause before the next boot after failures in a row: 0.5, 1, 2, ... seconds.
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.5, 60.0


class DesktopKeeper:
    """Keeps clean desktops in the pool's slots, each in its own coroutine: none waits for another's reset."""

    def __init__(
        self, config: EnvironmentConfig, workers: Workers, queue: LeaseQueue, metrics: PoolMetrics, hosts: Hosts
    ):
        self.has_served = False
        """Whether any desktop has ever come up."""
        self._config = config
        self._workers = workers
        self._queue = queue
        self._metrics = metrics
        self._hosts = hosts
        self._failures: defaultdict[int, int] = defaultdict(int)
        self._unfinished: set[int] = set()
        """Slots whose desktops may be in any state, because their coroutine was interrupted."""
        self._booting: Counter[str] = Counter()
        """Running boots, by node."""
        self._boot_over: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Events by node, set for a moment when a boot ends."""
        self._boot_failures = 0
        self._failing_since = math.inf

    async def keep(self, slot: int) -> None:
        """Serve until the pool refuses everybody. If it raises, it may be called again."""
        while not self._queue.is_closed:
            if not self._workers.is_placed(slot):
                self._metrics.desktop_is(slot, DesktopState.UNPLACED)
            worker = await self._workers.worker_of(slot)
            if slot in self._unfinished:
                await self._renew(worker, slot)
            self._unfinished.add(slot)
            pause_s = await self._serve(worker, slot)
            self._unfinished.discard(slot)
            await asyncio.sleep(pause_s)

    async def _serve(self, worker: Worker, slot: int) -> float:
        """Serve one life of a desktop, or a failed boot; return the pause after it."""
        self._metrics.desktop_is(slot, DesktopState.BOOTING)
        began = time.monotonic()
        reply = await self._boot(worker, slot)
        if reply.error is None:
            self.has_served = True
            self._failures[slot] = self._boot_failures = 0
            self._failing_since = math.inf
            self._metrics.call_done("boot", reply.seconds)
            report = await self._offer(worker, slot)
            if report.fault is not None or report.interrupted:
                self._metrics.desktop_is(slot, DesktopState.DEAD)
                await self._renew(worker, slot)
            return 0.0
        self._failures[slot] += 1
        self._metrics.desktop_is(slot, DesktopState.DEAD)
        self._boot_failed(reply.error, slot, began)
        await self._renew(worker, slot)
        return float(min(BACKOFF_FIRST_S * 2 ** min(self._failures[slot] - 1, 8), BACKOFF_MAX_S))

    async def _boot(self, worker: Worker, slot: int) -> CallResult:
        timeout_s = self._config.boot_timeout_s
        try:
            await asyncio.wait_for(asyncio.shield(worker.started), timeout_s)
        except TimeoutError:
            why = await self._workers.diagnose(worker)
            self._workers.lost(worker)
            message = f"no worker process for desktop {slot} started within {timeout_s:g} s: {why}"
            return CallResult(error=DesktopBootError(message))
        except ray.exceptions.RayError as error:
            self._workers.lost(worker)
            return CallResult(error=DesktopBootError(f"the worker of desktop {slot} did not start: {error}"))
        node_id = worker.node_id
        with self._queue.boots(node_id):
            reply = await self._prepare_in_turn(worker, slot)
        if reply.error is None:
            self._hosts.booted(node_id)
        elif not isinstance(reply.error, HostLostError):  # many desktops died with one host; they move
            is_misconfigured = isinstance(reply.error, ConfigError)
            self._hosts.boot_failed(node_id, worker.host, str(reply.error), is_misconfigured)
        return reply

    async def _prepare_in_turn(self, worker: Worker, slot: int) -> CallResult:
        """Prepare the desktop when its host may boot another."""
        node_id = worker.node_id
        while not self._may_boot(node_id):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._boot_over[node_id].wait(), RETRY_INTERVAL_S)
            if worker not in self._workers.running:
                return CallResult(error=HostLostError(f"the worker of desktop {slot} is gone"))
        is_asking = self._hosts.ask(node_id)
        self._booting[node_id] += 1
        try:
            return await self._prepare(worker, slot)
        finally:
            if is_asking:
                self._hosts.answered(node_id)
            self._booting[node_id] -= 1
            self._boot_over[node_id].set()
            self._boot_over[node_id].clear()

    def _may_boot(self, node_id: str) -> bool:
        if self._hosts.is_dropped(node_id) and self._queue.may_lease_on(node_id):
            return False  # that desktop asks the host
        return self._booting[node_id] < self._most_boots(node_id) and self._hosts.may_use(node_id)

    def _most_boots(self, node_id: str) -> int:
        """Return how many of a node's desktops may boot at once."""
        workers = [worker for worker in self._workers.running if worker.has_started and worker.node_id == node_id]
        num_desktops = sum(len(worker.slots) for worker in workers)
        return self._config.max_boots_per_host or max(FEWEST_BOOTS, math.ceil(num_desktops * BOOT_SHARE))

    async def _prepare(self, worker: Worker, slot: int) -> CallResult:
        timeout_s = self._config.boot_timeout_s
        try:
            reply: CallResult = await bounded(
                worker.actor.call.remote(slot, self._workers.generations[slot], "prepare"), timeout_s
            )
        except TimeoutError:
            return CallResult(error=DesktopBootError(f"desktop {slot} did not boot within {timeout_s:g} s"))
        except ray.exceptions.RayError as error:
            self._workers.lost(worker)
            return CallResult(error=HostLostError(f"the worker of desktop {slot} died: {error}"))
        if worker not in self._workers.running:  # it died just after it had replied
            return CallResult(error=HostLostError(f"the worker of desktop {slot} died"))
        return reply

    async def _offer(self, worker: Worker, slot: int) -> LeaseReport:
        """Offer the desktop for a lease; while nobody has it, check now and then that it is alive."""
        desktop = BootedDesktop(worker, slot, self._workers.generations[slot])
        try:
            while True:
                self._metrics.desktop_is(slot, DesktopState.IDLE)
                self._queue.offer(desktop)
                await asyncio.wait({desktop.done}, timeout=self._config.health_interval_s)
                if not self._queue.withdraw(desktop):
                    return await desktop.done
                if not await self._is_ready(desktop):
                    logger.warning("%s died while nobody used it", desktop.name)
                    if worker in self._workers.running:
                        self._metrics.count(f"faults/{IDLE}")
                    else:
                        self._metrics.fault(HostLostError)
                    return LeaseReport(DesktopLostError)
        except Exception:
            self._queue.recall(desktop)
            raise

    async def _is_ready(self, desktop: BootedDesktop) -> bool:
        call = desktop.worker.actor.call.remote(desktop.index, desktop.generation, "is_ready")
        try:
            return (await bounded(call, self._config.step_timeout_s)).value is True
        except (TimeoutError, ray.exceptions.RayError):
            return False

    async def _renew(self, worker: Worker, slot: int) -> None:
        """Let the worker throw the desktop away; replace a worker that cannot even do that."""
        if worker not in self._workers.running:
            return
        try:
            self._workers.generations[slot] = await bounded(worker.actor.renew.remote(slot), ANSWER_TIMEOUT_S)
        except (TimeoutError, ray.exceptions.RayError):
            self._workers.lost(worker)

    def _boot_failed(self, error: Exception, slot: int, began: float) -> None:
        """Count a failed boot; end the run if no desktop has ever come up: that is a mistake rather than an outage."""
        self._boot_failures += 1
        self._failing_since = min(self._failing_since, began)
        self._metrics.fault(HostLostError if isinstance(error, HostLostError) else DesktopBootError)
        logger.warning("desktop %d did not boot: %s", slot, error)
        workers = self._workers.running
        if isinstance(error, ConfigError) and all(worker.has_started for worker in workers):
            # If one node lacks something, we lose only that node; if all do, the recipe is wrong.
            if self._hosts.all_misconfigured(worker.node_id for worker in workers):
                self._queue.refuse(error)
                return
        failing_s = time.monotonic() - self._failing_since
        has_lasted = failing_s >= min(FIRST_BOOT_S, self._config.boot_timeout_s)
        is_enough = self._boot_failures >= self._config.max_boot_failures and has_lasted
        if is_enough and not self.has_served and not self._queue.refusal:
            message = f"{self._boot_failures} boots failed in a row, for {failing_s:.0f} s, and no desktop came up"
            self._queue.refuse(ConfigError(f"{message}; the last error: {error}"))
