"""The named Ray actor behind the pool. Calls on a desktop go from its holder straight to the worker; only leases and
counters pass here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import ray

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.pool.fleet import Fleet, Worker, bounded
from arpo_verl.pool.hosts import Hosts
from arpo_verl.pool.lease_desk import Grant, LeaseDesk
from arpo_verl.pool.metrics import LeaseReport, PoolMetrics
from arpo_verl.pool.placement import check_cluster
from arpo_verl.pool.quarantine import Quarantine
from arpo_verl.pool.slot_keeper import ANSWER_TIMEOUT_S, SlotKeeper
from arpo_verl.pool.status_file import StatusFile, pool_document
from arpo_verl.pool.supervision import Supervisor

logger = logging.getLogger(__name__)

# How often workers are asked whether they hang, and leases whether their holders live.
WATCH_INTERVAL_S = 15.0
# How often the pool is asked whether it serves anybody.
OUTAGE_INTERVAL_S = 1.0
# When nobody has wanted a desktop for so long, whoever comes next waits anew. Sessions rest between their attempts.
FORGET_OUTAGE_S = 60.0
# Ray takes seconds to start a process, whatever a boot may take.
STARVED_S = 15.0
GAUGES = ("nodes", "hosts_resting", "tasks_quarantined")


class DesktopCoordinator:
    """Puts the pool's parts together. An asyncio actor: all its state is one event loop's."""

    def __init__(self, config: EnvironmentConfig):
        self._config = config
        self._metrics = PoolMetrics(config.num_desktops)
        self._hosts = Hosts()
        self._quarantine = Quarantine(config, self._count_hosts)
        self._desk = LeaseDesk(self._metrics, self._quarantine, self._hosts)
        self._fleet: Fleet | None = None
        self._keeper: SlotKeeper | None = None
        tell = partial(self._desk.answer_all, "DesktopBootError")
        self._supervisor = Supervisor(partial(self._metrics.count, "loop_restarts"), tell)

    async def start(self, config: EnvironmentConfig) -> str:
        """Boot desktops ahead of the first lease. Returns why `config` does not fit this pool, or ''."""
        if self._fleet is None:
            self._fleet = Fleet(self._config, self._desk.host_lost, self._hosts)
            self._supervisor.start("start", partial(self._open, self._fleet))
            if self._config.status_file is not None:
                status_file = StatusFile(Path(self._config.status_file), partial(self._document, self._fleet))
                self._supervisor.start("status file", status_file.run)
        if config != self._config:
            names = [f.name for f in fields(config) if getattr(config, f.name) != getattr(self._config, f.name)]
            # Not their values: a password may be among them.
            return f"this job's desktop pool was made with another environment section: {', '.join(names)} differ"
        return ""

    async def acquire(self, lease_id: str, task_id: str, avoid: Collection[str], batch: int) -> Grant:
        """Wait in turn for a clean desktop, by choice of none of the nodes of `avoid`."""
        return await self._desk.acquire(lease_id, task_id, avoid, batch)

    async def was_set_up(self, lease_id: str) -> None:
        """The lease's task is set up: its host works."""
        self._desk.was_set_up(lease_id)

    async def release(self, lease_id: str, report: LeaseReport) -> bool:
        """End a lease, or leave the queue. Returns whether it was an attempt of its session."""
        return self._desk.release(lease_id, report)

    async def holder_died(self, holder: str) -> None:
        """Take back the desktops of a rollout worker that died, and count it."""
        self._metrics.count("rollout_workers_lost")
        self._desk.holder_died(holder)

    async def report_drop(self, task_id: str) -> None:
        """Count a session that was given up: after faults of desktops or of the rollout engine, or with its worker."""
        logger.warning("a session of task %s was dropped after faults: nothing of it is scored", task_id)
        self._metrics.count("dropped_sessions")

    async def refuse(self, message: str) -> None:
        """Lease no desktop any more: the run cannot go on, for the reason that `refusal` gives from now on."""
        if not self._desk.refusal:
            self._desk.refuse("ConfigError", message)

    async def refusal(self) -> str:
        """Why the run cannot go on, or ''."""
        return self._desk.refusal

    async def status(self) -> dict[str, int]:
        """How many desktops are in which state, how many rollouts wait, how many nodes work or rest, at this moment."""
        workers = [] if self._fleet is None else self._fleet.workers
        nodes = {worker.node_id for worker in workers if worker.has_started}
        return {
            **self._metrics.now,
            "nodes": len(nodes),
            "hosts_resting": len(self._hosts.resting),
            "tasks_quarantined": len(self._quarantine.task_ids),
        }

    async def metrics(self) -> dict[str, float]:
        """Counters since the last call, and `GAUGES` as they are now."""
        now = await self.status()
        gauges = {f"environment/{name}": float(now[name]) for name in GAUGES}
        return self._metrics.collect() | gauges

    async def close(self) -> None:
        """Close every desktop. The pool serves nobody afterwards."""
        self._desk.refuse("DesktopBootError", "the desktop pool is closed")
        self._supervisor.stop()
        if self._fleet is not None:
            await self._fleet.close()

    def _document(self, fleet: Fleet) -> dict[str, Any]:
        return pool_document(fleet, self._desk, self._metrics, self._quarantine.task_ids, self._hosts.resting)

    def _count_hosts(self) -> int:
        workers = [] if self._fleet is None else self._fleet.workers
        nodes = {worker.node_id for worker in workers if worker.has_started}
        return sum(not self._hosts.is_resting(node_id) for node_id in nodes)

    # --- In the background ---------------------------------------------------------------------------------------

    async def _open(self, fleet: Fleet) -> None:
        try:
            check_cluster(self._config, await asyncio.to_thread(ray.nodes))
        except ConfigError as error:
            self._desk.refuse("ConfigError", str(error))
            return
        if self._keeper is None:
            self._keeper = keeper = SlotKeeper(self._config, fleet, self._desk, self._metrics, self._hosts)
            for slot in range(self._config.num_desktops):
                self._supervisor.start(f"desktop {slot}", partial(keeper.keep, slot))
            self._supervisor.start("placement", fleet.run)
            self._supervisor.start("watch over workers", partial(self._watch, fleet))
            self._supervisor.start("watch for outages", partial(self._watch_for_outages, fleet, keeper))

    async def _watch(self, fleet: Fleet) -> None:
        """Replace workers that hang, and end the leases of holders that have not been heard of for long."""
        interval_s = min(WATCH_INTERVAL_S, self._config.lease_idle_timeout_s / 2)
        while True:
            await asyncio.sleep(interval_s)
            started = [worker for worker in fleet.workers if worker.has_started]
            await asyncio.gather(*(self._check(fleet, worker) for worker in started))
            await fleet.leave_hosts(self._desk.is_at_work)

    async def _watch_for_outages(self, fleet: Fleet, keeper: SlotKeeper) -> None:
        """Tell those who wait when waiting has been in vain for long enough."""
        out_since: float | None = None
        wanted_at = time.monotonic()
        while True:
            await asyncio.sleep(OUTAGE_INTERVAL_S)
            now = time.monotonic()
            if self._desk.is_wanted:
                wanted_at = now
            is_forgotten = keeper.has_served and now - wanted_at > FORGET_OUTAGE_S
            if self._desk.is_serving or is_forgotten:
                out_since = None
                continue
            out_since = out_since or now
            out_s = now - out_since
            if keeper.has_served:
                if out_s > self._config.outage_timeout_s:
                    resting = "; ".join(f"{name} {why}" for name, why in self._hosts.resting.items())
                    self._desk.answer_all(
                        "DesktopBootError",
                        f"no desktop has served for {out_s:.0f} s, longer than environment.outage_timeout_s="
                        f"{self._config.outage_timeout_s:g}: {resting or await fleet.diagnose()}",
                    )
            elif out_s > max(self._config.boot_timeout_s, STARVED_S) and not any(
                worker.has_started for worker in fleet.workers
            ):
                self._desk.answer_all("DesktopBootError", f"no node has room for desktops: {await fleet.diagnose()}")

    async def _check(self, fleet: Fleet, worker: Worker) -> None:
        try:
            idle_s = await bounded(worker.actor.ping.remote(), ANSWER_TIMEOUT_S)
        except (TimeoutError, ray.exceptions.RayError):
            fleet.lost(worker)
            return
        for lease_id, desktop in list(self._desk.leased.items()):
            if desktop.worker is not worker:
                continue
            unused_s = min(idle_s[desktop.index], time.monotonic() - desktop.leased_at)
            if unused_s > self._config.lease_idle_timeout_s:
                logger.warning("%s was not used for %.0f s: taken back", desktop.name, unused_s)
                self._metrics.count("leases_reclaimed")
                self._desk.take_back(lease_id, "DesktopLostError")
