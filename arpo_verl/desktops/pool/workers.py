"""Starts the pool's worker processes on nodes with room for desktops, and replaces dead ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.hosts import Hosts
from arpo_verl.desktops.pool.placement import Offer, Placement, describe, place, read_offers
from arpo_verl.desktops.pool.worker import CLOSE_TIMEOUT_S, DesktopWorker

logger = logging.getLogger(__name__)
T = TypeVar("T")

# How often desktops without a node look for one, since nodes come back and new ones join.
PLACE_INTERVAL_S = 2.0
# Ray takes up to half a minute to notice that a node is dead.
SUSPECT_S = 30.0
# How often the log says that they are still looking.
COMPLAIN_INTERVAL_S = 60.0


@dataclass(eq=False)
class Worker:
    """A worker process; `node_id` and `host`, its node's name for people, are known once it has started."""

    actor: ActorHandle[DesktopWorker]
    placement: Placement
    started: asyncio.Task[tuple[str, str]]

    @property
    def slots(self) -> tuple[int, ...]:
        return self.placement.slots

    @property
    def node_id(self) -> str:
        return self.started.result()[0]

    @property
    def host(self) -> str:
        offer = self.placement.offer
        return offer.resource if offer is not None else self.started.result()[1]

    @property
    def has_started(self) -> bool:
        return self.started.done() and not self.started.cancelled() and self.started.exception() is None


class Workers:
    """Gives every slot a worker. Only the pool actor's event loop uses it.

    Args:
        config: which desktops, and the resources of their workers.
        on_lost: called for each dead worker, after we have forgotten it.
        hosts: the nodes' failures; a dropped node is used only if no other has room.
    """

    def __init__(self, config: EnvironmentConfig, on_lost: Callable[[Worker], None], hosts: Hosts):
        self.generations = dict.fromkeys(range(config.num_desktops), 1)
        """The number of each slot's current or next desktop."""
        self.running: list[Worker] = []
        self._config = config
        self._on_lost = on_lost
        self._hosts = hosts
        self._homes: dict[int, asyncio.Future[Worker]] = {}
        self._homeless: set[int] = set()
        self._changed = asyncio.Event()
        self._lives: set[asyncio.Task[None]] = set()
        self._suspected: dict[str, float] = {}
        self._complained = 0.0
        self._move_out(range(config.num_desktops))

    async def worker_of(self, slot: int) -> Worker:
        """Return the slot's worker, after waiting until a node has room for one."""
        return await asyncio.shield(self._homes[slot])

    def is_placed(self, slot: int) -> bool:
        return slot not in self._homeless

    def host_of(self, slot: int) -> str | None:
        """Return the node of the slot's worker; None without a worker, or if its node is not known yet."""
        home = self._homes[slot]
        worker = home.result() if home.done() else None
        is_known = worker is not None and (worker.placement.offer is not None or worker.has_started)
        return worker.host if worker is not None and is_known else None

    def lost(self, worker: Worker) -> None:
        """Forget a worker that died or does not answer, and place its desktops again. Safe to call twice."""
        if worker not in self.running:
            return
        logger.warning("the desktop worker of slots %s died; starting another", worker.slots)
        self.running.remove(worker)
        if worker.has_started:
            self._suspected[worker.node_id] = time.monotonic()
        for slot in worker.slots:
            self.generations[slot] += 1
        self._move_out(worker.slots)
        self._on_lost(worker)
        ray.kill(worker.actor)

    async def run(self) -> None:
        """Place slots without a worker, for ever."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), PLACE_INTERVAL_S if self._homeless else None)
            self._changed.clear()
            await self._place_homeless()

    async def leave_hosts(self, is_busy: Callable[[Worker], bool]) -> None:
        """Give up idle workers on hosts that boot no desktops, if other hosts have room for all their desktops."""
        nodes = await asyncio.to_thread(ray.nodes)
        self._hosts.forget_all_but(node["NodeID"] for node in nodes if node["Alive"])
        offers = self._trusted(read_offers(nodes, self._config.host_prefix))
        for worker in list(self.running) if offers else ():
            used = self._used()
            room = sum(max(0, offer.units - used[offer]) for offer in offers or ()) - len(self._homeless)
            if room < len(worker.slots):
                break
            if worker.has_started and self._hosts.boots_none(worker.node_id) and not is_busy(worker):
                logger.warning("desktops %s leave %s, which boots none", worker.slots, worker.host)
                self.lost(worker)

    async def close(self) -> None:
        """Close every desktop in order, then end the workers."""
        workers, self.running = self.running, []
        closing = [bounded(worker.actor.close.remote(), CLOSE_TIMEOUT_S + 5) for worker in workers]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.warning("a desktop worker did not close in order: %s", outcome)
        for worker in workers:
            ray.kill(worker.actor)

    async def diagnose(self, worker: Worker | None = None) -> str:
        """Return why a worker may not start, or why there is none: the cluster's offers, and what of them is free."""
        nodes = await asyncio.to_thread(ray.nodes)
        offers = read_offers(nodes, self._config.host_prefix)
        free = await asyncio.to_thread(ray.available_resources)
        if offers is None:
            asked = dict(self._config.worker_resources) or "none: Ray has not started their processes yet"
            return f"the cluster's free resources are {free}; workers need {asked}"
        names = {offer.resource for offer in offers} if worker is None else {worker.host}
        unused = ", ".join(f"{name}: {free.get(name, 0):g}" for name in sorted(names))
        return f"the cluster offers {describe(nodes, offers)}; free are {unused or 'none'}"

    def _move_out(self, slots: range | tuple[int, ...]) -> None:
        for slot in slots:
            self._homes[slot] = asyncio.get_running_loop().create_future()
        self._homeless.update(slots)
        self._changed.set()

    async def _place_homeless(self) -> None:
        if not self._homeless:
            return
        nodes = await asyncio.to_thread(ray.nodes)
        offers = read_offers(nodes, self._config.host_prefix)
        for choice in (self._trusted(offers), offers):
            for placement in place(sorted(self._homeless), choice, self._used(), self._config.desktops_per_worker):
                self._start(placement)
        if self._homeless and time.monotonic() - self._complained > COMPLAIN_INTERVAL_S:
            self._complained = time.monotonic()
            logger.warning(
                "%d desktops wait for a node with free units: %s", len(self._homeless), describe(nodes, offers or [])
            )

    def _trusted(self, offers: list[Offer] | None) -> list[Offer] | None:
        """Remove dropped nodes, and nodes that have just lost a worker: Ray may not know yet that they are dead."""
        if offers is None:
            return None
        recent = time.monotonic() - SUSPECT_S
        return [
            offer
            for offer in offers
            if self._suspected.get(offer.node_id, recent) <= recent and not self._hosts.is_dropped(offer.node_id)
        ]

    def _used(self) -> Counter[Offer]:
        used: Counter[Offer] = Counter()
        for worker in self.running:
            if worker.placement.offer is not None:
                used[worker.placement.offer] += len(worker.slots)
        return used

    def _start(self, placement: Placement) -> None:
        generations = {slot: self.generations[slot] for slot in placement.slots}
        actor = _worker_class(self._config, placement).remote(self._config, generations)
        worker = Worker(actor, placement, asyncio.create_task(_awaited(actor.where.remote())))
        worker.started.add_done_callback(lambda task: task.cancelled() or task.exception())  # or asyncio complains
        self.running.append(worker)
        self._homeless.difference_update(placement.slots)
        for slot in placement.slots:
            self._homes[slot].set_result(worker)
        life = asyncio.create_task(self._outlive(worker))
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)

    async def _outlive(self, worker: Worker) -> None:
        """Wait for the worker's death: then Ray ends this call with an error."""
        try:
            await worker.actor.live.remote()
        except Exception as error:
            logger.info("a desktop worker ended: %s", error)
            self.lost(worker)


def _worker_class(config: EnvironmentConfig, placement: Placement) -> Any:
    resources, offer = dict(config.worker_resources), placement.offer
    options: dict[str, Any] = {
        "num_cpus": resources.pop("CPU", 0),
        # Every desktop may have a running call, and the pool also checks leases.
        "max_concurrency": 4 * len(placement.slots) + 16,
        "scheduling_strategy": "SPREAD",
    }
    if "memory" in resources:
        options["memory"] = resources.pop("memory")
    if offer is not None:
        resources[offer.resource] = len(placement.slots)
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(offer.node_id, soft=False)
    if resources:
        options["resources"] = resources
    if config.py_executable is not None:
        options["runtime_env"] = {"py_executable": config.py_executable}
    return ray.remote(DesktopWorker).options(**options)


async def bounded(ref: Awaitable[T], timeout_s: float) -> T:
    """Return the result of a Ray call, or raise `asyncio.TimeoutError`."""
    return await asyncio.wait_for(_awaited(ref), timeout_s)


async def _awaited(ref: Awaitable[T]) -> T:
    return await ref
