"""Watch the run's rollout workers. A new worker replaces a dead one, and nobody waits for the dead one's prompts.

veRL's manager hands prompts over and forgets them, while its sampler waits until each is over. So we make each prompt a
call that ends with it, and keep one endless call to each worker: Ray ends that one with an error when the process dies.
All this runs on an event loop beside the trainer's thread, which only waits for the queue.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import OutOfMemoryError, RayActorError, RayError

from arpo_verl.errors import RolloutWorkerError, SessionsLostError
from arpo_verl.plugin.lost_prompts import LostPrompts, Prompt
from arpo_verl.plugin.queue import TRAINING
from arpo_verl.plugin.trainer_watch import TrainerFault, in_words, watch_queue

logger = logging.getLogger(__name__)

MAX_DEATHS = 3
"""Deaths of one worker and its replacements, without a finished prompt in between, after which the run ends: the cause
will not go away."""
FRUITLESS_BATCHES = 3
"""Batches' worth of useless prompts in a row after which the run ends. Such a cause does not go away by itself, and the
pool already waits for desktops before it gives up a session."""
_DEATHS = (RayActorError, OutOfMemoryError)
"""Errors of a call to a dead worker. Ray's memory monitor causes the second."""


@dataclass(eq=False)
class _Place:
    """The place of a worker, which a new worker takes over when the old one dies."""

    number: int
    actor: ActorHandle[Any]
    prompts: set[Prompt] = field(default_factory=set)
    """Prompts that it has not finished."""
    deaths: int = 0
    """Deaths in a row without a finished prompt in between."""


class FruitlessPrompts:
    """Counts prompts in a row that lost sessions: veRL would throw them away and draw others forever.

    Args:
        batch_size: prompts of a batch.
        keeps_partial: whether veRL trains on the remaining sessions of a prompt.
    """

    def __init__(self, batch_size: int, keeps_partial: bool) -> None:
        self._most = FRUITLESS_BATCHES * batch_size
        self._keeps_partial = keeps_partial
        self._in_a_row = 0
        self._errors: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def note(self, prompt: Prompt, reasons: Sequence[str]) -> None:
        """Note that a prompt is over.

        Args:
            reasons: why it lost sessions, one reason for each.

        Raises:
            SessionsLostError: that makes three batches of useless prompts in a row.
        """
        if prompt.partition_id != TRAINING:
            return
        if not reasons or (self._keeps_partial and len(reasons) < prompt.num_sessions):
            self._in_a_row = 0
            self._errors.clear()
            self._examples.clear()
            return
        self._in_a_row += 1
        by_error = {reason.partition(":")[0]: reason for reason in reasons}
        self._examples = by_error | self._examples
        self._errors.update(reason.partition(":")[0] for reason in reasons)
        if self._in_a_row >= self._most:
            most_common = self._errors.most_common(3)
            causes = "; ".join(f"{number} times {self._examples[error]}" for error, number in most_common)
            raise SessionsLostError(
                f"The last {self._in_a_row} prompts all lost sessions, so no batch can be put together. The most "
                f"frequent reasons are: {causes}. Remove the reason and start the same command again: it resumes from "
                "the last checkpoint."
            )


class RolloutWorkers:
    """Gives prompts to the workers, and replaces workers that die.

    Args:
        actors: the workers. A replacement takes the dead one's place in here too.
        start: starts another worker.
        lost_prompts: cleans up after a dead one.
        fruitless: is called for each prompt that is over.
        fault: ends the run.
    """

    def __init__(
        self,
        actors: MutableSequence[ActorHandle[Any]],
        start: Callable[[], ActorHandle[Any]],
        lost_prompts: LostPrompts,
        fruitless: FruitlessPrompts,
        fault: TrainerFault,
    ) -> None:
        self._actors = actors
        self._fruitless = fruitless
        self._fault = fault
        self._start = start
        self._lost_prompts = lost_prompts
        self._places = [_Place(number, actor) for number, actor in enumerate(actors)]
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="arpo_verl-workers")
        self._thread.start()
        for place in self._places:
            self._loop.call_soon_threadsafe(self._spawn, self._watch(place))
        self._loop.call_soon_threadsafe(self._spawn, watch_queue(fault))
        atexit.register(self.close)

    def play(self, prompts: Sequence[Prompt]) -> None:
        """Give each prompt to a worker, and return before they are over.

        Raises:
            RolloutWorkerError: the workers die again and again.
        """
        self._fault.check()
        asyncio.run_coroutine_threadsafe(self._give(prompts), self._loop).result()

    def close(self) -> None:
        """Stop watching; the workers live on. Safe to call twice."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _cancel_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _give(self, prompts: Sequence[Prompt]) -> None:
        """Give each to the worker with the fewest, if possible not to one that died with it."""
        for prompt in prompts:
            place = min(self._places, key=lambda place: (place.number in prompt.died_at, len(place.prompts)))
            place.prompts.add(prompt)
            self._spawn(self._follow(place, place.actor, prompt))

    async def _follow(self, place: _Place, actor: ActorHandle[Any], prompt: Prompt) -> None:
        """Wait until the prompt is over."""
        try:
            reasons = await actor.play.remote(prompt.batch, prompt.done)
        except _DEATHS:
            ray.kill(actor)  # it may only be unreachable; `_watch` handles its prompts
        else:
            place.prompts.discard(prompt)
            place.deaths = 0
            self._fruitless.note(prompt, reasons)

    async def _watch(self, place: _Place) -> None:
        """Handle the worker's death, and the deaths of its replacements."""
        while True:
            error = await _death_of(place.actor)
            place.deaths += 1
            prompts, place.prompts = place.prompts, set()
            dead, is_last = place.actor, place.deaths == MAX_DEATHS
            if is_last:
                self._fault.report(_keeps_dying(place, error))
            else:
                self._actors[place.number] = place.actor = self._start()
                logger.warning("rollout worker %d died, and another takes its place: %s", place.number, in_words(error))
            again = await self._lost_prompts.settle(dead._actor_id.hex(), place.number, prompts, gives_up=is_last)
            if is_last:
                return
            await self._give(again)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report an error of a worker or of this module: otherwise prompts would be awaited forever."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault.report(error)


async def _death_of(actor: ActorHandle[Any]) -> RayError:
    """Wait until the worker is dead, and return Ray's error."""
    try:
        await actor.live.remote()
    except _DEATHS as error:
        ray.kill(actor)  # it may only be unreachable, and must not write what another worker plays again
        return error
    raise RuntimeError("a rollout worker's `live` must not return")


def _keeps_dying(place: _Place, error: RayError) -> RolloutWorkerError:
    told = RolloutWorkerError(
        f"Rollout worker {place.number} died {place.deaths} times in a row and finished no prompt in between. Look at "
        "the workers' logs (worker-*.err in Ray's folder on each node, by default /tmp/ray/session_latest/logs), and "
        "in `dmesg` for processes that were killed because memory ran out. Then start the same command again: it "
        f"resumes from the last checkpoint. Ray says: {in_words(error)}"
    )
    told.__cause__ = error
    return told
