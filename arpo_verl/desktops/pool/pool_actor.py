"""The named Ray actor behind the pool. It handles leases and counters; calls on a desktop go straight to its worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import ray

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.desktop_keeper import ANSWER_TIMEOUT_S, DesktopKeeper
from arpo_verl.desktops.pool.hosts import Hosts
from arpo_verl.desktops.pool.lease_queue import Grant, LeaseQueue
from arpo_verl.desktops.pool.metrics import LeaseReport, PoolMetrics
from arpo_verl.desktops.pool.placement import check_cluster
from arpo_verl.desktops.pool.status_file import keep_status_file, pool_document
from arpo_verl.desktops.pool.workers import Worker, Workers, bounded
from arpo_verl.errors import ConfigError, DesktopBootError, DesktopLostError

logger = logging.getLogger(__name__)

# How often the pool checks that workers do not hang and that leases are in use.
WATCH_INTERVAL_S = 15.0
# How often the pool checks whether it serves anybody.
OUTAGE_INTERVAL_S = 1.0
# If nobody has wanted a desktop for so long, plus the pauses between a session's attempts, the next one waits again.
FORGET_OUTAGE_S = 60.0
# Ray takes seconds to start a process, however short a boot is.
STARVED_S = 15.0
# Pause before a loop starts again: 0.5, 1, 2, ... seconds. After a run of `SOUND_S` it begins with the first again.
PAUSE_FIRST_S, PAUSE_MAX_S, SOUND_S = 0.5, 30.0, 60.0
# After so many failures in a row, those who wait get an error.
HOPELESS = 8
GAUGES = ("nodes", "hosts_dropped")


class PoolActor:
    """An asyncio actor that puts the pool's parts together: all its state belongs to one event loop.

    `DesktopPool` and `LeaseQueue` say what the methods of the same names do.
    """

    def __init__(self, config: EnvironmentConfig):
        self._config = config
        self._metrics = PoolMetrics(config.num_desktops)
        self._hosts = Hosts()
        self._queue = LeaseQueue(self._metrics, self._hosts)
        self._workers: Workers | None = None
        self._keeper: DesktopKeeper | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, config: EnvironmentConfig) -> str:
        """Boot desktops before the first lease; return why `config` does not fit this pool, or ''."""
        if self._workers is None:
            self._workers = Workers(self._config, self._queue.host_lost, self._hosts)
            self._start_loop("start", partial(self._open, self._workers))
            if self._config.status_file is not None:
                path, read = Path(self._config.status_file), partial(self._document, self._workers)
                self._start_loop("status file", partial(keep_status_file, path, read))
        if config != self._config:
            names = [f.name for f in fields(config) if getattr(config, f.name) != getattr(self._config, f.name)]
            # Names only, since a value may be a password.
            return f"this job's desktop pool was made with another environment section: {', '.join(names)} differ"
        return ""

    async def acquire(self, lease_id: str, task_id: str, avoid: Collection[str], batch: int) -> Grant:
        return await self._queue.acquire(lease_id, task_id, avoid, batch)

    async def was_set_up(self, lease_id: str) -> None:
        self._queue.was_set_up(lease_id)

    async def release(self, lease_id: str, report: LeaseReport) -> bool:
        return self._queue.release(lease_id, report)

    async def report_drop(self, task_id: str) -> None:
        logger.warning("a session of task %s was dropped, without a score", task_id)
        self._metrics.count("dropped_sessions")

    async def refuse(self, message: str) -> None:
        """Lease no more desktops: the run cannot go on, and `refusal` gives the reason from now on."""
        if not self._queue.refusal:
            self._queue.refuse(ConfigError(message))

    async def refusal(self) -> str:
        return self._queue.refusal

    async def status(self) -> dict[str, int]:
        """Return the numbers of desktops in each state, waiting rollouts, nodes, and dropped nodes, now."""
        workers = [] if self._workers is None else self._workers.running
        nodes = {worker.node_id for worker in workers if worker.has_started}
        return {**self._metrics.now, "nodes": len(nodes), "hosts_dropped": len(self._hosts.dropped)}

    async def metrics(self) -> dict[str, float]:
        """Return the counters since the last call, and `GAUGES` as they are now."""
        now = await self.status()
        gauges = {f"environment/{name}": float(now[name]) for name in GAUGES}
        return self._metrics.collect() | gauges

    async def close(self) -> None:
        """Close every desktop. The pool serves nobody afterwards."""
        self._queue.refuse(DesktopBootError("the desktop pool is closed"))
        for task in self._tasks:
            task.cancel()
        if self._workers is not None:
            await self._workers.close()

    def _document(self, workers: Workers) -> dict[str, Any]:
        return pool_document(workers, self._queue, self._metrics, self._hosts.dropped)

    def _tell_all(self, message: str) -> None:
        """Send everybody who waits now an error: there will be no desktop."""
        self._queue.answer_all(DesktopBootError(message))

    # --- In the background ---------------------------------------------------------------------------------------

    async def _open(self, workers: Workers) -> None:
        try:
            check_cluster(self._config, await asyncio.to_thread(ray.nodes))
        except ConfigError as error:
            self._queue.refuse(error)
            return
        if self._keeper is None:
            self._keeper = keeper = DesktopKeeper(self._config, workers, self._queue, self._metrics, self._hosts)
            for slot in range(self._config.num_desktops):
                self._start_loop(f"desktop {slot}", partial(keeper.keep, slot))
            self._start_loop("placement", workers.run)
            self._start_loop("watch over workers", partial(self._watch, workers))
            self._start_loop("watch for outages", partial(self._watch_for_outages, workers, keeper))

    async def _watch(self, workers: Workers) -> None:
        """Replace workers that hang, and end leases that their holders have not used for long."""
        interval_s = min(WATCH_INTERVAL_S, self._config.lease_idle_timeout_s / 2)
        while True:
            await asyncio.sleep(interval_s)
            started = [worker for worker in workers.running if worker.has_started]
            await asyncio.gather(*(self._check(workers, worker) for worker in started))
            await workers.leave_hosts(self._queue.is_at_work)

    async def _watch_for_outages(self, workers: Workers, keeper: DesktopKeeper) -> None:
        """Send those who wait an error after no desktop has served for long enough."""
        config = self._config
        forget_s = FORGET_OUTAGE_S + config.retry_backoff_s * 2**config.max_attempts
        began = served_at = wanted_at = time.monotonic()
        while True:
            await asyncio.sleep(OUTAGE_INTERVAL_S)
            self._queue.match()  # a dropped host may be asked again
            now = time.monotonic()
            if self._queue.is_wanted:
                wanted_at = now
            self._queue.is_out = now - served_at > config.outage_timeout_s
            if not keeper.has_served:
                served_at = now
                is_late = now - began > max(config.boot_timeout_s, STARVED_S)
                if is_late and not any(worker.has_started for worker in workers.running):
                    self._tell_all(f"no node has room for desktops: {await workers.diagnose()}")
            elif self._queue.is_serving or now - wanted_at > forget_s:
                served_at = now
            elif self._queue.is_out:
                dropped = "; ".join(f"on {name} {why}" for name, why in self._hosts.dropped.items())
                self._tell_all(
                    f"no desktop has served for {now - served_at:.0f} s, longer than environment.outage_timeout_s="
                    f"{config.outage_timeout_s:g}: {dropped or await workers.diagnose()}",
                )

    async def _check(self, workers: Workers, worker: Worker) -> None:
        try:
            idle_s = await bounded(worker.actor.ping.remote(), ANSWER_TIMEOUT_S)
        except (TimeoutError, ray.exceptions.RayError):
            workers.lost(worker)
            return
        for lease_id, desktop in list(self._queue.leased.items()):
            if desktop.worker is not worker:
                continue
            unused_s = min(idle_s[desktop.index], time.monotonic() - desktop.leased_at)
            if unused_s > self._config.lease_idle_timeout_s:
                logger.warning("%s was not used for %.0f s, so the pool takes it back", desktop.name, unused_s)
                self._metrics.count("leases_reclaimed")
                self._queue.take_back(lease_id, DesktopLostError)

    # --- Loops ---------------------------------------------------------------------------------------------------

    def _start_loop(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop` in a task of its own until it returns, and again if it raises."""
        task = asyncio.create_task(self._keep(name, loop))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                return await loop()
            except Exception as error:
                failures = 1 if time.monotonic() - began > SOUND_S else failures + 1
                logger.exception("the desktop pool's %s failed (%d times in a row) and starts again", name, failures)
                if failures >= HOPELESS:
                    self._tell_all(
                        f"the desktop pool's {name} has failed {failures} times in a row; this is a bug, or Ray is "
                        f"broken: {type(error).__name__}: {error}"
                    )
            self._metrics.count("loop_restarts")
            await asyncio.sleep(min(PAUSE_FIRST_S * 2 ** min(failures - 1, 8), PAUSE_MAX_S))
