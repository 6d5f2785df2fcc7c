"""One slot's life: find a place, boot a desktop, offer it, wait until its holder is done, clean it, again."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict

import ray

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.pool.fleet import Fleet, Worker, bounded
from arpo_verl.pool.lease_desk import LeaseDesk, ReadyDesktop
from arpo_verl.pool.metrics import IDLE_FAULT, DesktopState, LeaseReport, PoolMetrics
from arpo_verl.pool.worker import Reply

logger = logging.getLogger(__name__)

# A live worker answers what needs no desktop at once; a busy machine may take a while.
ANSWER_TIMEOUT_S = 60.0
# An engine or a node that is started again takes up to a minute, and all desktops fail at it together: eight failures
# in a row are then one.
OUTAGE_S = 60.0
# Pause before the next boot after failures in a row: 0.5, 1, 2, ... seconds.
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.5, 60.0


class SlotKeeper:
    """Keeps the pool's slots in clean desktops, each in a coroutine of its own: none ever waits for another's reset."""

    def __init__(self, config: EnvironmentConfig, fleet: Fleet, desk: LeaseDesk, metrics: PoolMetrics):
        self._config = config
        self._fleet = fleet
        self._desk = desk
        self._metrics = metrics
        self._boots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(config.max_boots_per_host)
        )
        self._boot_failures = 0
        self._failing_since = math.inf

    async def keep(self, slot: int) -> None:
        """Serve until the pool refuses everybody."""
        failures = 0
        while not self._desk.is_closed:
            if not self._fleet.is_placed(slot):
                self._metrics.desktop_is(slot, DesktopState.UNPLACED)
            worker = await self._fleet.worker_of(slot)
            self._metrics.desktop_is(slot, DesktopState.BOOTING)
            began = time.monotonic()
            reply = await self._boot(worker, slot)
            if reply.error is None:
                failures = self._boot_failures = 0
                self._failing_since = math.inf
                self._metrics.call_done("boot", reply.seconds)
                report = await self._offer(worker, slot)
                if report.fault is None and not report.interrupted:
                    continue
                self._metrics.desktop_is(slot, DesktopState.DEAD)
            else:
                failures += 1
                self._metrics.desktop_is(slot, DesktopState.DEAD)
                self._boot_failed(reply, slot, began)
                await asyncio.sleep(min(BACKOFF_FIRST_S * 2 ** (failures - 1), BACKOFF_MAX_S))
            await self._renew(worker, slot)

    async def _boot(self, worker: Worker, slot: int) -> Reply:
        timeout_s = self._config.boot_timeout_s
        try:
            await asyncio.wait_for(asyncio.shield(worker.started), timeout_s)
        except asyncio.TimeoutError:
            why = await self._fleet.diagnose(worker)
            self._fleet.lost(worker)
            message = f"no worker process for desktop {slot} started within {timeout_s:g} s: {why}"
            return Reply(error="DesktopBootError", message=message)
        except ray.exceptions.RayError as error:
            self._fleet.lost(worker)
            return Reply(error="DesktopBootError", message=f"the worker of desktop {slot} did not start: {error}")
        async with self._boots[worker.node_id]:
            return await self._prepare(worker, slot)

    async def _prepare(self, worker: Worker, slot: int) -> Reply:
        timeout_s = self._config.boot_timeout_s
        try:
            reply: Reply = await bounded(worker.actor.prepare.remote(slot, self._fleet.generations[slot]), timeout_s)
        except asyncio.TimeoutError:
            return Reply(error="DesktopBootError", message=f"desktop {slot} did not boot within {timeout_s:g} s")
        except ray.exceptions.RayError as error:
            self._fleet.lost(worker)
            return Reply(error="HostLostError", message=f"the worker of desktop {slot} died: {error}")
        if worker not in self._fleet.workers:  # it died just after it had replied
            return Reply(error="HostLostError", message=f"the worker of desktop {slot} died")
        return reply

    async def _offer(self, worker: Worker, slot: int) -> LeaseReport:
        """Have it leased; ask now and then whether it is alive while nobody has it."""
        desktop = ReadyDesktop(worker, slot, self._fleet.generations[slot])
        while True:
            self._metrics.desktop_is(slot, DesktopState.IDLE)
            self._desk.offer(desktop)
            await asyncio.wait({desktop.done}, timeout=self._config.health_interval_s)
            if not self._desk.withdraw(desktop):
                return await desktop.done
            if not await self._is_ready(desktop):
                logger.warning("%s died while nobody used it", desktop.name)
                fault = IDLE_FAULT if worker in self._fleet.workers else "HostLostError"
                self._metrics.fault(fault)
                return LeaseReport(fault)

    async def _is_ready(self, desktop: ReadyDesktop) -> bool:
        call = desktop.worker.actor.is_ready.remote(desktop.index, desktop.generation)
        try:
            return (await bounded(call, self._config.step_timeout_s)).value is True
        except (asyncio.TimeoutError, ray.exceptions.RayError):
            return False

    async def _renew(self, worker: Worker, slot: int) -> None:
        """Have the worker throw the desktop away; a worker that does not even do that is replaced."""
        if worker not in self._fleet.workers:
            return
        try:
            self._fleet.generations[slot] = await bounded(worker.actor.renew.remote(slot), ANSWER_TIMEOUT_S)
        except (ray.exceptions.RayError, asyncio.TimeoutError):
            self._fleet.lost(worker)

    def _boot_failed(self, reply: Reply, slot: int, began: float) -> None:
        """Count it; once boots have failed for long enough, tell whoever waits, and then begin to count anew."""
        assert reply.error is not None
        self._boot_failures += 1
        self._failing_since = min(self._failing_since, began)
        self._metrics.fault(reply.error if reply.error == "HostLostError" else "DesktopBootError")
        logger.warning("desktop %d did not boot: %s", slot, reply.message)
        if reply.error == "ConfigError":
            self._desk.refuse("ConfigError", reply.message)
            return
        failing_s = time.monotonic() - self._failing_since
        has_lasted = failing_s >= min(OUTAGE_S, self._config.boot_timeout_s)
        if self._boot_failures >= self._config.max_boot_failures and has_lasted and not self._desk.has_desktops:
            message = f"{self._boot_failures} boots failed in a row, for {failing_s:.0f} s, and no desktop is alive; "
            self._desk.answer_all("DesktopBootError", message + f"the last: {reply.message}")
            self._boot_failures, self._failing_since = 0, math.inf
