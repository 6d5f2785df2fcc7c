"""The desktops of a job, leased one episode at a time.

    pool = DesktopPool.connect(config)
    async with pool.lease(task.task_id) as desktop:
        observation = await desktop.reset(task)
        observation = await desktop.step(action)
        evaluation = await desktop.evaluate()

A desktop that raised a `DesktopError` is thrown away when the block is left; any other is cleaned. Both happen in the
background, so that a booted desktop waits for the next lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from types import TracebackType
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import (
    ConfigError,
    DesktopBootError,
    DesktopEndedError,
    DesktopError,
    DesktopLostError,
    DesktopSetupError,
    DesktopUnclearError,
    EvaluatorError,
    HostLostError,
)
from arpo_verl.pool.lease_queue import Grant, new_lease_id
from arpo_verl.pool.metrics import Fault, LeaseReport, fault_of
from arpo_verl.pool.pool_actor import PoolActor
from arpo_verl.pool.worker import CLOSE_TIMEOUT_S, CallResult
from arpo_verl.pool.workers import bounded
from arpo_verl.types import Action, Evaluation, GuestAnswer, GuestRequest, Observation, Task

POOL_NAME = "arpo_verl_desktop_pool"

# Rollouts that may wait for a desktop at once; Ray queues calls beyond it, releases among them.
MAX_WAITING = 100_000
METRICS_TIMEOUT_S = 60.0
# Of a fault's message, for the log: a guest's answer may be in it.
MESSAGE_CHARACTERS = 1000


class DesktopPool:
    """A process's handle on the job's pool; any number of processes of a job share one.

    Args:
        holder: Ray's name of the actor that this process is, by which the pool hears of its death; "" for none.
    """

    def __init__(self, config: EnvironmentConfig, actor: ActorHandle[PoolActor], holder: str = ""):
        self._config = config
        self._actor = actor
        self._holder = holder
        self._hello = actor.start.remote(config)

    @classmethod
    def connect(cls, config: EnvironmentConfig, name: str = POOL_NAME) -> DesktopPool:
        """Get this job's pool, or make it: its desktops then boot at once, in the background.

        The pool lives as long as the object that made it, within one Ray job: keep that one. Objects that found the
        pool there already do not keep it alive.
        """
        # On its maker's node: no other node's death, which it is there to survive, takes it along.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"name": name, "get_if_exists": True, "num_cpus": 0, "max_concurrency": MAX_WAITING}
        options["scheduling_strategy"] = here
        holder = ray.get_runtime_context().get_actor_id() or ""
        return cls(config, ray.remote(PoolActor).options(**options).remote(config), holder)

    def session(self, task_id: str, batch: int = 0) -> Session:
        """What one episode's attempts share; see there."""
        return Session(self, self._actor, task_id, batch)

    def lease(self, task_id: str, avoid: Collection[str] = (), batch: int = 0) -> Lease:
        """A clean desktop for the length of an `async with` block; waits in turn when all are busy.

        Args:
            task_id: whom the faults are put down to, and who is kept away when they become many.
            avoid: nodes, by `Desktop.node_id`, whose desktops to take only where no other host has any.
            batch: number of the training step that it is for: those of the lowest are served first.

        Raises on entry:
            TaskQuarantinedError: the task broke desktops repeatedly.
            ConfigError: the pool was made with another config, or its desktops cannot be made here at all.
            DesktopBootError: no desktop comes up.
        """
        return Lease(self._config, self._actor, self._hello, task_id, tuple(avoid), batch, self._holder)

    async def report_drop(self, task_id: str) -> None:
        """Count a session that was given up, whatever the reason."""
        with contextlib.suppress(ray.exceptions.RayError):  # a pool that died counts nothing any more
            await self._actor.report_drop.remote(task_id)

    async def holder_died(self, holder: str) -> None:
        """Take back at once what a rollout worker had that died; counted in `rollout_workers_lost`."""
        with contextlib.suppress(ray.exceptions.RayError):
            await self._actor.holder_died.remote(holder)

    async def refuse(self, message: str) -> None:
        """Lease no desktop any more: those who wait, and those who come, get a `ConfigError` with this message."""
        with contextlib.suppress(ray.exceptions.RayError):
            await self._actor.refuse.remote(message)

    def refusal(self) -> str:
        """The message of the `ConfigError` that everybody gets instead of a desktop, or ''. Blocks."""
        message: str = ray.get(self._actor.refusal.remote(), timeout=METRICS_TIMEOUT_S)
        return message

    def status(self) -> dict[str, int]:
        """What the pool is at just now: `desktops_idle`, `desktops_busy`, `rollouts_waiting`, `nodes`, ... Blocks."""
        status: dict[str, int] = ray.get(self._actor.status.remote(), timeout=METRICS_TIMEOUT_S)
        return status

    async def status_async(self) -> dict[str, int]:
        """`status` for an event loop."""
        status: dict[str, int] = await self._actor.status.remote()
        return status

    def metrics(self) -> dict[str, float]:
        """Counters since the last call, `environment/...`. Blocks; in a coroutine use `metrics_async`."""
        metrics: dict[str, float] = ray.get(self._actor.metrics.remote(), timeout=METRICS_TIMEOUT_S)
        return metrics

    async def metrics_async(self) -> dict[str, float]:
        """`metrics` for an event loop."""
        metrics: dict[str, float] = await self._actor.metrics.remote()
        return metrics

    def close(self) -> None:
        """Close all desktops and end the pool for every process. Blocks; safe to call twice."""
        try:
            ray.get(self._actor.close.remote(), timeout=2 * CLOSE_TIMEOUT_S)
        except ray.exceptions.RayActorError:
            return
        ray.kill(self._actor)
        self._await_end()

    def _await_end(self) -> None:
        """Wait until Ray has ended the actor: until then a request for a pool of its name gets this one."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        with contextlib.suppress(ray.exceptions.RayError):
            while time.monotonic() < deadline:
                ray.get(self._actor.status.remote(), timeout=CLOSE_TIMEOUT_S)
                time.sleep(0.02)


class Session:
    """One episode's leases, an attempt each: the next one on a host that has not failed it yet, where there is one."""

    def __init__(self, pool: DesktopPool, actor: ActorHandle[PoolActor], task_id: str, batch: int):
        self._pool = pool
        self._actor = actor
        self._task_id = task_id
        self._batch = batch
        self._leases: list[Lease] = []

    def lease(self) -> Lease:
        """See `DesktopPool.lease`."""
        failed_it = {lease.node_id for lease in self._leases if lease.node_id}
        self._leases.append(self._pool.lease(self._task_id, failed_it, self._batch))
        return self._leases[-1]

    async def count_faults(self) -> int:
        """How many of the attempts so far, all ended by faults, count; see `LeaseQueue.release`."""
        try:
            return sum([lease.released is None or await lease.released for lease in self._leases])
        except ray.exceptions.RayError:
            return len(self._leases)


class Lease:
    """The `async with` block of a leased desktop; see `DesktopPool.lease`."""

    def __init__(
        self,
        config: EnvironmentConfig,
        actor: ActorHandle[PoolActor],
        hello: Awaitable[str],
        task_id: str,
        avoid: tuple[str, ...],
        batch: int,
        holder: str,
    ):
        self.id = new_lease_id(holder)
        self.node_id = ""
        """Of the desktop's host, once there is one."""
        self.released: Awaitable[bool] | None = None
        """The call that ended it; whether it was an attempt of its session."""
        self._config = config
        self._actor = actor
        self._hello = hello
        self._task_id = task_id
        self._avoid = avoid
        self._batch = batch
        self._desktop: Desktop | None = None

    async def __aenter__(self) -> Desktop:
        try:
            mismatch = await self._hello
            if mismatch:
                raise ConfigError(mismatch + "; use one environment section in a job")
            grant = await self._actor.acquire.remote(self.id, self._task_id, self._avoid, self._batch)
        except asyncio.CancelledError:
            self._release(LeaseReport())
            raise
        except ray.exceptions.RayError as error:
            self._release(LeaseReport())
            raise DesktopBootError(f"the job's desktop pool died, or the process that made it: {error}") from error
        if grant.error is not None:
            raise grant.error
        self.node_id = grant.node_id
        self._desktop = Desktop(self._config, grant, partial(self._actor.was_set_up.remote, self.id))
        return self._desktop

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        desktop = self._desktop
        if desktop is None:
            raise RuntimeError("a lease must be entered before it is left")
        fault = desktop.fault
        # An end before the policy's first reply was a set-up's: the episode says so.
        if fault in (None, DesktopEndedError) and isinstance(error, DesktopError):
            fault = fault_of(error)
        message = str(error)[:MESSAGE_CHARACTERS] if fault is not None else ""
        self._release(LeaseReport(fault, dict(desktop.seconds), desktop.interrupted, message))

    def _release(self, report: LeaseReport) -> None:
        # Not awaited: leaving must succeed in a cancelled task too, and the cleaning is nobody's wait.
        self.released = self._actor.release.remote(self.id, report)


class Desktop:
    """A leased desktop: `DesktopEnvironment`, awaited. Raises the same errors, a hang and a dead worker included."""

    def __init__(self, config: EnvironmentConfig, grant: Grant, was_set_up: Callable[[], object]):
        self.fault: Fault | None = None
        self.interrupted = False
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        assert grant.actor is not None, "a grant without an error has one"
        self._config = config
        self._worker = grant.actor
        self._slot = (grant.index, grant.generation)
        self.name = f"desktop-{grant.index}.{grant.generation}"
        """Unique in the job."""
        self.host = grant.host
        """The node that it runs on: the resource that it takes there, or the node's address."""
        self.node_id = grant.node_id
        """Ray's name of that node."""
        self._was_set_up = was_set_up

    async def reset(self, task: Task) -> Observation:
        """See `DesktopEnvironment.reset`. Bounded by `reset_timeout_s`."""
        call = self._worker.reset.remote(*self._slot, task)
        seen: Observation = await self._result("reset", call, self._config.reset_timeout_s, DesktopSetupError)
        self._was_set_up()  # not awaited: it is nobody's wait
        return seen

    async def step(self, action: Action) -> Observation:
        """See `DesktopEnvironment.step`. Bounded by `step_timeout_s`."""
        call = self._worker.step.remote(*self._slot, action)
        seen: Observation = await self._result("step", call, self._config.step_timeout_s, DesktopUnclearError)
        return seen

    async def look(self) -> Observation:
        """See `DesktopEnvironment.look`. Bounded by `step_timeout_s`, and counted as a step."""
        call = self._worker.look.remote(*self._slot)
        seen: Observation = await self._result("step", call, self._config.step_timeout_s, DesktopUnclearError)
        return seen

    async def ask(self, request: GuestRequest) -> GuestAnswer:
        """See `DesktopEnvironment.ask`. Bounded by `step_timeout_s`, and counted as a step."""
        call = self._worker.ask.remote(*self._slot, request)
        answer: GuestAnswer = await self._result("step", call, self._config.step_timeout_s, DesktopUnclearError)
        return answer

    async def evaluate(self) -> Evaluation:
        """See `DesktopEnvironment.evaluate`. Bounded by `evaluate_timeout_s`."""
        call = self._worker.evaluate.remote(*self._slot)
        verdict: Evaluation = await self._result("evaluate", call, self._config.evaluate_timeout_s, EvaluatorError)
        return verdict

    async def _result(
        self, name: str, call: Awaitable[CallResult], timeout_s: float, on_timeout: type[DesktopError]
    ) -> Any:
        if self.fault is not None:
            raise DesktopLostError(f"this desktop already failed with {self.fault.__name__}; lease another")
        try:
            reply = await bounded(call, timeout_s)
        except asyncio.CancelledError:
            self.interrupted = True
            raise
        except TimeoutError as error:
            self.fault = on_timeout
            raise on_timeout(
                f"{name} took longer than environment.{name}_timeout_s={timeout_s:g}; "
                "the desktop is thrown away; raise the limit if the work is rightly that long"
            ) from error
        except ray.exceptions.RayError as error:
            self.fault = HostLostError
            message = f"the process that hosts {self.name} on {self.host} died during {name}: {error}"
            raise HostLostError(message) from error
        if reply.error is not None:
            self.fault = type(reply.error)
            raise reply.error
        self.seconds[name].append(reply.seconds)
        return reply.value
