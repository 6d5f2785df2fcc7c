"""Watch what the trainer depends on while it waits: faults in other threads, engines, desktops, and veRL's queue.

The sampler asks about the first three at each look at the queue, since the queue does not say why sessions fail.

If the queue's controller dies, TransferQueue's client waits for it forever; for a storage unit it waits three times
200 s (0.1.11: `client.py`, `storage/managers/simple_storage_manager.py`). So do the workers that the trainer waits for.
Therefore `watch_queue` interrupts the trainer's thread.

An engine may be lost. The router learns of dead engines from failed calls (`arpo_verl.plugin.engines`). An engine that
hangs fails no call, so we find it here: it has calls, and ends none of them for `gui_agent.engine_timeout_s`. Only time
in which the trainer waits counts, because veRL pauses its engines while it updates. We finish and save the step of a
loss, and end the run where veRL needs every engine (`arpo_verl.plugin.patches`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)

from arpo_verl.errors import ConfigError, DesktopLostError, EngineLostError, QueueLostError

if TYPE_CHECKING:
    from arpo_verl.environments.config import EnvironmentConfig

logger = logging.getLogger(__name__)

_ROUTER_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 10.0
"""Seconds for an engine to answer an empty call. A live one needs milliseconds; a busy one is not asked again."""
_LONGEST_LOOK_S = 10.0
"""Most seconds between two looks of a waiting trainer. In a longer time it did something else."""
_CHARACTERS = 1000
"""Most characters of an error in a message."""
_QUEUE_LOOK_S = 5.0
_QUEUE_CLOSING_S = 20.0
"""Seconds in which a process of the queue may end without having died: at its end a run gives the storage 15 s."""


class TrainerFault:
    """Holds an error found beside the trainer's thread, which this thread raises when it next waits."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._listens = False

    def listen(self) -> None:
        """Let `interrupt` reach this thread, if it is the process's main thread, as the trainer's is."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, self._raise_in)
            self._listens = True

    def _raise_in(self, _: int, frame: FrameType | None) -> None:
        """Raise the error in the running code, `frame`.

        Only KeyboardInterrupt ends a wait in `ray.get` and `ray.wait` (2.60: `_raylet.pyx: check_signals`). Any other
        error leaves them as a SystemError, after the wait. So we raise KeyboardInterrupt there, and replace it by the
        error when it leaves Ray's function.
        """
        is_in_ray = frame is not None and frame.f_globals.get("__name__", "").startswith("ray.")
        if self._error is None or not is_in_ray:
            self.check()
            return

        def replace(left: FrameType, event: str, _: Any) -> None:
            if left is frame and event == "return":
                sys.setprofile(None)
                self.check()

        sys.setprofile(replace)
        raise KeyboardInterrupt

    def interrupt(self, error: BaseException) -> None:
        """Report an error, and make the trainer raise it at once, whatever it waits for."""
        self.report(error)
        if self._listens:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    def report(self, error: BaseException) -> None:
        """Make the trainer end with this error, unless there is an earlier one."""
        logger.error("the run ends: %s", error)
        self._error = self._error or error

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class LostEngine:
    """An engine that gets no more requests."""

    server_id: str
    since: float
    """Unix time when we noticed it."""
    reason: str


@dataclass(frozen=True)
class EngineStatus:
    """What the router knows about all engines."""

    lost: tuple[LostEngine, ...]
    serving: int
    """Number of engines that get requests."""
    open_calls: Mapping[str, int]
    """Unfinished calls by engine."""
    ended_calls: Mapping[str, int]
    """Finished calls by engine, however they ended."""
    retried: int
    """Number of calls so far that one engine failed and another answered."""


def is_death(error: BaseException) -> bool:
    """Return whether a call to an actor raised this because the actor's process is gone."""
    passing = isinstance(error, (ActorUnavailableError, RayTaskError))  # RayTaskError: raised inside a live actor
    return isinstance(error, (RayActorError, NodeDiedError, OutOfMemoryError)) and not passing


def in_words(error: BaseException) -> str:
    """Return the error on one line, shortened, without the colours and underlined code of Ray's messages."""
    plain = re.sub(r"\x1b\[[\d;]*m|\^{2,}", "", str(error))
    text = f"{type(error).__name__}: {' '.join(plain.split())}"
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS // 2]} ... {text[-_CHARACTERS // 2 :]}"


class TrainerEngines:
    """The run's rollout engines as the trainer's process sees them. Until `watch` is called it does nothing.

    Args:
        fault: ends the run.
    """

    def __init__(self, fault: TrainerFault) -> None:
        self._fault = fault
        self._router: Any = None
        self._trainer_config: Any = None
        self.timeout_s = 0.0
        self.is_ending = False
        """Whether the trainer must end, since its engines have no new weights. They must write nothing more."""
        self._told: set[str] = set()
        self._silent_s: defaultdict[str, float] = defaultdict(float)
        self._ended: dict[str, int] = {}
        self._looked_at = 0.0
        self._retried = 0

    def watch(self, router: Any, timeout_s: float, trainer_config: Any) -> None:
        """Watch the engines of this router.

        Args:
            timeout_s: seconds that an engine may leave all its calls unanswered while the trainer waits.
            trainer_config: the trainer's own section `trainer`, which it reads after every step.
        """
        self._router, self.timeout_s, self._trainer_config = router, timeout_s, trainer_config

    @property
    def is_watching(self) -> bool:
        """Whether there is a router that remembers lost engines."""
        return self._router is not None

    def check(self) -> None:
        """Find engines that hang. The sampler calls this at each look at the queue.

        Raises:
            EngineLostError: no engine is left.
        """
        if not self.is_watching:
            return
        try:
            status = self._look()
        except GetTimeoutError:
            return
        except RayActorError as error:
            raise EngineLostError(
                "The process that sends requests to the rollout engines died, and without it no engine can reply. "
                f"Start the same command again: it resumes from the last checkpoint. Ray says: {in_words(error)}"
            ) from error
        self._find_hanging(status)
        self._note(status.lost)
        if status.lost and not status.serving:
            raise EngineLostError(f"{_describe(status.lost)} No rollout engine is left. {_GO_ON}")

    def lost(self) -> tuple[LostEngine, ...]:
        """Return the lost engines; none if the router does not answer."""
        try:
            lost = self._look().lost if self.is_watching else ()
        except GetTimeoutError:
            return ()
        self._note(lost)
        return lost

    def read(self) -> dict[str, float]:
        """Return the metrics `engines/*` since the last call; empty without a router that remembers lost engines."""
        if not self.is_watching:
            return {}
        try:
            status = self._look()
        except ray.exceptions.RayError as error:
            logger.warning("the router of rollout engines gave no metrics this step: %s", error)
            return {}
        retried, self._retried = status.retried - self._retried, status.retried
        return {"engines/retried_calls": float(retried), "engines/lost": float(len(status.lost))}

    def lose(self, replica: Any, reason: str) -> None:
        """Mark an engine as lost that failed a call of the trainer itself.

        Args:
            replica: veRL's `RolloutReplica`.
        """
        ray.get(self._router.lose.remote(replica.server_address, reason))
        for server in replica.servers:
            ray.kill(server)
        self._note(self._look().lost)

    async def find_dead(self, replicas: Sequence[Any]) -> None:
        """Find engines that died while nobody called them."""
        if self.is_watching:
            await asyncio.gather(*map(self._probe, replicas))

    async def _probe(self, replica: Any) -> None:
        calls = asyncio.gather(*(server.__ray_ready__.remote() for server in replica.servers))
        try:
            await asyncio.wait_for(calls, _PROBE_TIMEOUT_S)
        except TimeoutError:
            logger.warning("rollout engine %s did not answer within %g s", replica.server_address, _PROBE_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            if not is_death(error):
                raise
            self.lose(replica, in_words(error))

    def end_run(self) -> None:
        """Make the trainer end when it next gives out prompts or waits for them: its engines have old weights."""
        self.is_ending = True
        what = _describe(self.lost())
        self._fault.report(
            EngineLostError(
                f"{what} Its requests went to the others, and the step was trained to its end. veRL's weight update "
                f"needs every engine, so the run ends here. {_GO_ON}"
            )
        )

    def _look(self) -> EngineStatus:
        status: EngineStatus = ray.get(self._router.look.remote(), timeout=_ROUTER_TIMEOUT_S)
        return status

    def _find_hanging(self, status: EngineStatus) -> None:
        now = time.monotonic()
        waited_s, self._looked_at = min(now - self._looked_at, _LONGEST_LOOK_S), now
        for server_id, num_open in status.open_calls.items():
            ended = status.ended_calls.get(server_id, 0)
            if self._ended.get(server_id) != ended:
                self._ended[server_id], self._silent_s[server_id] = ended, 0.0
                continue
            self._silent_s[server_id] += waited_s
            if self._silent_s[server_id] >= self.timeout_s:
                reason = f"it ended none of its {num_open} calls in gui_agent.engine_timeout_s={self.timeout_s:g}"
                ray.get(self._router.lose.remote(server_id, reason))
        for server_id in self._silent_s.keys() - status.open_calls.keys():  # they have no calls
            del self._silent_s[server_id]

    def _note(self, lost: Sequence[LostEngine]) -> None:
        """Save the running step, since the run ends after it, unless the recipe saves nothing."""
        new = {engine.server_id for engine in lost} - self._told
        if not new:
            return
        self._told |= new
        logger.error("%s The other engines get its requests; the run ends after this step.", _describe(lost))
        if self._trainer_config.save_freq > 0:
            self._trainer_config.save_freq = 1


_GO_ON = (
    "Look at the engine's log (worker-*.err in Ray's folder on its node, by default /tmp/ray/session_latest/logs), and "
    "in `dmesg`. Then start the same command again: it resumes from the last checkpoint."
)


def _describe(lost: Sequence[LostEngine]) -> str:
    """Describe each engine, since when it is lost, and why."""
    lines = []
    for engine in lost:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(engine.since))
        lines.append(f"Rollout engine {engine.server_id} is lost since {since}: {engine.reason}.")
    return " ".join(lines)


class JobDesktops:
    """Makes the job's desktop pool together with the trainer, so that desktops boot while the model loads.

    The pool lives as long as the process that made it. So the trainer makes it, not a rollout worker.

    Args:
        environment: the recipe's section `environment`; with None there is no pool.

    Raises:
        ConfigError: the Ray cluster has no room for the desktops.
    """

    def __init__(self, environment: EnvironmentConfig | None) -> None:
        self._pool = None
        if environment is not None and ray.is_initialized():
            from arpo_verl.pool.desktop_pool import DesktopPool
            from arpo_verl.pool.placement import check_cluster

            check_cluster(environment, ray.nodes())
            self._pool = DesktopPool.connect(environment)

    def check(self) -> None:
        """Ask whether a rollout or the pool found that the run cannot go on. Only the trainer can end it.

        Raises:
            ConfigError: says why.
            DesktopLostError: the pool's own process died. Every session would fail, and veRL would draw others forever.
        """
        if self._pool is None:
            return
        try:
            refusal = self._pool.refusal()
        except (ActorDiedError, OutOfMemoryError) as error:
            raise DesktopLostError(
                "The job's desktop pool died, and without it there are no desktops. Start the same command again: it "
                f"resumes from the last checkpoint. Ray says: {error}"
            ) from error
        except ray.exceptions.RayError:  # as in `read`
            return
        if refusal:
            raise ConfigError(refusal)

    def read(self) -> dict[str, float]:
        """Return the pool's `environment/*` since the last call; empty without a pool, or if it does not answer."""
        if self._pool is None:
            return {}
        try:
            return self._pool.metrics()
        except ray.exceptions.RayError as error:
            # A lost pool fails the rollouts anyway; the current batch is good.
            logger.warning("the desktop pool gave no metrics this step: %s", error)
            return {}


async def watch_queue(fault: TrainerFault) -> None:
    """Make the trainer end when a process of veRL's queue dies; then return."""
    from arpo_verl.plugin import queue

    while True:
        for name, actor in queue.processes().items():
            try:
                await actor.__ray_ready__.remote()
            except ray.exceptions.RayError as error:
                if not is_death(error):  # it only cannot be reached now
                    continue
                await asyncio.sleep(_QUEUE_CLOSING_S)
                if name in queue.processes():
                    fault.interrupt(_lost_queue(name, error))
                return
        await asyncio.sleep(_QUEUE_LOOK_S)


def _lost_queue(name: str, error: Exception) -> QueueLostError:
    return QueueLostError(
        f"A process of veRL's queue died ({name}), and the rows that it held are gone. Look in `dmesg` for processes "
        "that were killed because memory ran out. Then start the same command again: it resumes from the last "
        f"checkpoint. Ray says: {in_words(error)}"
    )
