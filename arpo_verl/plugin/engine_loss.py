"""What the trainer does about lost rollout engines: it finishes the step, and ends where veRL needs every engine.

While a step's rollouts are on their way, the sampler asks here at each look at the queue. The router knows the engines
that died from the calls that they failed (`arpo_verl.plugin.engines`). An engine that hangs fails no call, so we find
it here: it has calls, and ends none of them for `gui_agent.engine_timeout_s`. Only time in which the trainer waits
counts, because veRL holds its engines up on purpose while it updates.

Then veRL puts its engines to sleep, trains, saves, and gives the engines new weights. It has no hook around its calls
to engines, and each of them fails where one engine does. So we patch them (veRL 0.9.1, `checkpoint_engine/base.py:
CheckpointEngineManager`): they pass over a dead engine, and where the weights would be updated the run ends. We replace
the methods in their class, so a module that has imported the class before us gets them too.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from types import ModuleType
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from arpo_verl.errors import EngineLostError
from arpo_verl.plugin.engine_status import EngineStatus, LostEngine, in_words, is_death
from arpo_verl.plugin.trainer_state import TRAINER_FAULT

logger = logging.getLogger(__name__)

_ROUTER_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 10.0
"""An engine that lives answers a call that does nothing in milliseconds; one that is busy is not asked again."""
_LONGEST_LOOK_S = 10.0
"""Between two looks of a trainer that waits; in a longer time it did something else."""
_CALLS = {
    "sleep_replicas": "sleep",
    "abort_replicas": "abort_all_requests",
    "resume_generation_replicas": "resume_generation",
}
"""Methods of veRL's `CheckpointEngineManager`, and of each replica, which they call."""


class TrainerEngines:
    """The run's rollout engines, as the trainer's process sees them. Without `watch` it does nothing."""

    def __init__(self) -> None:
        self._router: Any = None
        self._trainer_config: Any = None
        self.timeout_s = 0.0
        self.is_ending = False
        """Whether the trainer is told to end: its engines have no new weights, and are to write nothing more."""
        self._told: set[str] = set()
        self._silent_s: defaultdict[str, float] = defaultdict(float)
        self._ended: dict[str, int] = {}
        self._looked_at = 0.0
        self._retried = 0

    def watch(self, router: Any, timeout_s: float, trainer_config: Any) -> None:
        """Look after the engines of this router.

        Args:
            timeout_s: how long an engine may leave all its calls unanswered while the trainer waits.
            trainer_config: the trainer's own section `trainer`, which it reads behind every step.
        """
        self._router, self.timeout_s, self._trainer_config = router, timeout_s, trainer_config

    @property
    def is_watching(self) -> bool:
        """Whether there is a router that remembers."""
        return self._router is not None

    def check(self) -> None:
        """Find engines that hang. The sampler asks at each look at the queue.

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
                "The process that sends requests to the rollout engines died, and no reply can be had without it. "
                f"Start the same command again: it resumes from the last checkpoint. Ray says: {in_words(error)}"
            ) from error
        self._find_hanging(status)
        self._note(status.lost)
        if status.lost and not status.serving:
            raise EngineLostError(f"{_describe(status.lost)} No rollout engine is left. {_GO_ON}")

    def lost(self) -> tuple[LostEngine, ...]:
        """The engines that are lost; none while the router does not answer."""
        try:
            lost = self._look().lost if self.is_watching else ()
        except GetTimeoutError:
            return ()
        self._note(lost)
        return lost

    def read(self) -> dict[str, float]:
        """Metrics `engines/*` since the last call; nothing without a router that remembers."""
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
        """An engine failed the trainer itself.

        Args:
            replica: veRL's `RolloutReplica`.
        """
        ray.get(self._router.lose.remote(replica.server_address, reason))
        for server in replica.servers:
            ray.kill(server)
        self._note(self._look().lost)

    async def find_dead(self, replicas: Sequence[Any]) -> None:
        """Find engines that died while nobody asked them anything."""
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
        """Have the trainer end where it next hands out prompts or waits for them: its engines have old weights."""
        self.is_ending = True
        what = _describe(self.lost())
        TRAINER_FAULT.tell(
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
        for server_id in self._silent_s.keys() - status.open_calls.keys():  # nothing to do
            del self._silent_s[server_id]

    def _note(self, lost: Sequence[LostEngine]) -> None:
        """Have the step that runs saved, since the run ends behind it; not where the recipe saves nothing."""
        new = {engine.server_id for engine in lost} - self._told
        if not new:
            return
        self._told |= new
        logger.error("%s The other engines get its requests; the run ends behind this step.", _describe(lost))
        if self._trainer_config.save_freq > 0:
            self._trainer_config.save_freq = 1


TRAINER_ENGINES = TrainerEngines()
"""Of this process: the loop manager has it watch, the sampler and veRL's patched calls to engines ask it."""

_GO_ON = (
    "Look at the engine's log (worker-*.err in Ray's folder on its node, by default /tmp/ray/session_latest/logs), and "
    "in `dmesg`. Then start the same command again: it resumes from the last checkpoint."
)


def survive_lost_engines(base: ModuleType) -> None:
    """Patch veRL's calls to all engines; a second call changes nothing.

    Args:
        base: the module `verl.checkpoint_engine.base`.
    """
    from verl.utils.ray_utils import auto_await

    manager = base.CheckpointEngineManager
    if hasattr(manager.update_weights, "_arpo_verl_patched"):
        return
    for name, call in _CALLS.items():
        setattr(manager, name, auto_await(_on_each(getattr(manager, name).__wrapped__, call)))
    update_weights = auto_await(_unless_lost(manager.update_weights.__wrapped__))
    update_weights._arpo_verl_patched = True
    manager.update_weights = update_weights


_Method = Callable[..., Coroutine[Any, Any, Any]]


def _on_each(stock: _Method, call: str) -> _Method:
    """Call all replicas; one that died, or gives no answer, is lost and passed over."""

    @functools.wraps(stock)
    async def on_each(manager: Any, **kwargs: Any) -> None:
        if not TRAINER_ENGINES.is_watching:
            await stock(manager, **kwargs)
            return
        if TRAINER_ENGINES.is_ending:
            return
        calls = [
            asyncio.wait_for(getattr(replica, call)(**kwargs), TRAINER_ENGINES.timeout_s)
            for replica in manager.replicas
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for replica, outcome in zip(manager.replicas, outcomes, strict=True):
            if isinstance(outcome, TimeoutError):
                TRAINER_ENGINES.lose(replica, f"it did not end `{call}` in {TRAINER_ENGINES.timeout_s:g} s")
            elif isinstance(outcome, BaseException):
                if not is_death(outcome):
                    raise outcome
                TRAINER_ENGINES.lose(replica, in_words(outcome))

    return on_each


def _unless_lost(stock: _Method) -> _Method:
    """Update weights, or have the run end."""

    @functools.wraps(stock)
    async def update_weights(manager: Any, global_steps: int | None = None) -> dict[str, Any]:
        await TRAINER_ENGINES.find_dead(manager.replicas)
        if TRAINER_ENGINES.lost():
            TRAINER_ENGINES.end_run()
            return {}
        metrics: dict[str, Any] = await stock(manager, global_steps)
        return metrics

    return update_weights


def _describe(lost: Sequence[LostEngine]) -> str:
    """Each engine, since when and why."""
    lines = []
    for engine in lost:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(engine.since))
        lines.append(f"Rollout engine {engine.server_id} is lost since {since}: {engine.reason}.")
    return " ".join(lines)
