"""A job's processes lease desktops here, one episode at a time.

    pool = DesktopPool.connect(config)
    async with pool.lease(task.task_id) as desktop:
        observation = await desktop.reset(task)
        observation = await desktop.step(action)
        evaluation = await desktop.evaluate()

At the end of the block the pool throws away a desktop that raised a `DesktopError`, and cleans any other. Both happen
in the background, so that a booted desktop waits for the next lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from types import TracebackType
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.lease_queue import Grant
from arpo_verl.desktops.pool.metrics import Fault, LeaseReport, fault_of
from arpo_verl.desktops.pool.pool_actor import PoolActor
from arpo_verl.desktops.pool.worker import CLOSE_TIMEOUT_S
from arpo_verl.desktops.pool.workers import bounded
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
from arpo_verl.types import Action, Evaluation, GuestAnswer, GuestRequest, Observation, Task

POOL_NAME = "arpo_verl_desktop_pool"

# Rollouts that may wait for a desktop at once; Ray queues further calls, even releases.
MAX_WAITING = 100_000
METRICS_TIMEOUT_S = 60.0
# Most characters of a fault's message in the log: it may contain a guest's answer.
MESSAGE_CHARACTERS = 1000


class DesktopPool:
    """A process's handle on the job's pool, which any number of processes of a job share."""

    def __init__(self, config: EnvironmentConfig, actor: ActorHandle[PoolActor]):
        self._config = config
        self._actor = actor
        self._hello = actor.start.remote(config)

    @classmethod
    def connect(cls, config: EnvironmentConfig, name: str = POOL_NAME) -> DesktopPool:
        """Get this job's pool, or make it; a new pool boots its desktops at once, in the background.

        The pool lives as long as the object that made it, within one Ray job, so keep that object. Objects that found
        an existing pool do not keep it alive.
        """
        # It runs on its maker's node, so that it survives the death of any other node.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"name": name, "get_if_exists": True, "num_cpus": 0, "max_concurrency": MAX_WAITING}
        options["scheduling_strategy"] = here
        return cls(config, ray.remote(PoolActor).options(**options).remote(config))

    def session(self, task_id: str, batch: int = 0) -> Session:
        """Return the session of one episode's attempts."""
        return Session(self, self._actor, task_id, batch)

    def lease(self, task_id: str, avoid: Collection[str] = (), batch: int = 0) -> Lease:
        """Lease a clean desktop for an `async with` block; it waits its turn when all are busy.

        Args:
            task_id: the task that the desktop is for.
            avoid: nodes, by `Desktop.node_id`, whose desktops to take only if no other host has any.
            batch: number of its training step: the pool serves the lowest first.

        Raises on entry:
            ConfigError: the pool was made with another config, or this cluster cannot make its desktops at all.
            DesktopBootError: no desktop comes up.
        """
        return Lease(self._config, self._actor, self._hello, task_id, tuple(avoid), batch)

    async def report_drop(self, task_id: str) -> None:
        """Count a session that was given up, for any reason."""
        with contextlib.suppress(ray.exceptions.RayError):  # a dead pool counts no more
            await self._actor.report_drop.remote(task_id)

    async def refuse(self, message: str) -> None:
        """Lease no more desktops: all who wait, and all who come later, get a `ConfigError` with this message."""
        with contextlib.suppress(ray.exceptions.RayError):
            await self._actor.refuse.remote(message)

    def refusal(self) -> str:
        """Return the message of the `ConfigError` that everybody gets instead of a desktop, or ''. Blocks."""
        message: str = ray.get(self._actor.refusal.remote(), timeout=METRICS_TIMEOUT_S)
        return message

    def status(self) -> dict[str, int]:
        """Return the pool's numbers now: `desktops_idle`, `desktops_busy`, `rollouts_waiting`, `nodes`, ... Blocks."""
        status: dict[str, int] = ray.get(self._actor.status.remote(), timeout=METRICS_TIMEOUT_S)
        return status

    def metrics(self) -> dict[str, float]:
        """Return the counters since the last call, `environment/...`. Blocks."""
        metrics: dict[str, float] = ray.get(self._actor.metrics.remote(), timeout=METRICS_TIMEOUT_S)
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
        """Wait until Ray has ended the actor: until then its name still leads to this pool."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        with contextlib.suppress(ray.exceptions.RayError):
            while time.monotonic() < deadline:
                ray.get(self._actor.status.remote(), timeout=CLOSE_TIMEOUT_S)
                time.sleep(0.02)


class Session:
    """One episode's leases, one for each attempt; each prefers hosts that have not failed the episode yet."""

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
        """Return how many of the attempts so far count, after faults ended all of them; see `LeaseQueue.release`."""
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
    ):
        self.id = uuid.uuid4().hex
        self.node_id = ""
        """Ray's id of the desktop's node, once there is one."""
        self.released: Awaitable[bool] | None = None
        """The call that ended it; its result is whether it was an attempt of its session."""
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
                raise ConfigError(mismatch + "; use the same environment section everywhere in a job")
            grant = await self._actor.acquire.remote(self.id, self._task_id, self._avoid, self._batch)
        except asyncio.CancelledError:
            self._release(LeaseReport())
            raise
        except ray.exceptions.RayError as error:
            self._release(LeaseReport())
            raise DesktopBootError(f"the job's desktop pool, or the process that made it, died: {error}") from error
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
        # If the desktop ended before the policy's first reply, the set-up ended it: the episode's error says so.
        if fault in (None, DesktopEndedError) and isinstance(error, DesktopError):
            fault = fault_of(error)
        message = str(error)[:MESSAGE_CHARACTERS] if fault is not None else ""
        self._release(LeaseReport(fault, dict(desktop.seconds), desktop.interrupted, message))

    def _release(self, report: LeaseReport) -> None:
        # Not awaited: this must succeed in a cancelled task too, and nobody needs to wait for the cleaning.
        self.released = self._actor.release.remote(self.id, report)


class Desktop:
    """A leased `DesktopEnvironment`, awaited. It raises the same errors, also for hangs and dead workers."""

    def __init__(self, config: EnvironmentConfig, grant: Grant, was_set_up: Callable[[], object]):
        self.fault: Fault | None = None
        self.interrupted = False
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        assert grant.actor is not None, "a grant without an error has one"
        self._config = config
        self._worker = grant.actor
        self._slot = (grant.index, grant.generation)
        self.name = f"desktop-{grant.index}.{grant.generation}"
        """The desktop's name, unique in the job."""
        self.host = grant.host
        """The name of its node: the resource that it takes there, or the node's address."""
        self.node_id = grant.node_id
        """Ray's name of that node."""
        self._was_set_up = was_set_up

    async def reset(self, task: Task) -> Observation:
        """See `DesktopEnvironment.reset`. The time limit is `reset_timeout_s`."""
        seen: Observation = await self._call("reset", DesktopSetupError, "reset", task)
        self._was_set_up()  # not awaited: nobody needs to wait for it
        return seen

    async def step(self, action: Action) -> Observation:
        """See `DesktopEnvironment.step`. The time limit is `step_timeout_s`."""
        seen: Observation = await self._call("step", DesktopUnclearError, "step", action)
        return seen

    async def look(self) -> Observation:
        """See `DesktopEnvironment.look`. The time limit is `step_timeout_s`, and it counts as a step."""
        seen: Observation = await self._call("step", DesktopUnclearError, "look")
        return seen

    async def ask(self, request: GuestRequest) -> GuestAnswer:
        """See `DesktopEnvironment.ask`. The time limit is `step_timeout_s`, and it counts as a step."""
        answer: GuestAnswer = await self._call("step", DesktopUnclearError, "ask", request)
        return answer

    async def evaluate(self) -> Evaluation:
        """See `DesktopEnvironment.evaluate`. The time limit is `evaluate_timeout_s`."""
        verdict: Evaluation = await self._call("evaluate", EvaluatorError, "evaluate")
        return verdict

    async def _call(self, name: str, on_timeout: type[DesktopError], method: str, *args: Any) -> Any:
        """Return the result of a method of the desktop; `name` says which time limit and which counter it has."""
        if self.fault is not None:
            raise DesktopLostError(f"this desktop already failed with {self.fault.__name__}; lease another")
        timeout_s = getattr(self._config, f"{name}_timeout_s")
        try:
            reply = await bounded(self._worker.call.remote(*self._slot, method, *args), timeout_s)
        except asyncio.CancelledError:
            self.interrupted = True
            raise
        except TimeoutError as error:
            self.fault = on_timeout
            raise on_timeout(
                f"{name} took longer than environment.{name}_timeout_s={timeout_s:g}; "
                "the pool throws the desktop away. Raise the limit if the work needs more time"
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
