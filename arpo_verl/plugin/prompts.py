"""Give prompts to the rollout workers, and learn how each ends.

veRL's manager hands prompts over and forgets them, and its queue does not say why a session failed. It gives a prompt
that it draws alone, as asynchronous modes do, always to the first worker. So each prompt is a call to the worker with
the fewest, which ends with the prompt.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle

from arpo_verl.desktops.pool.desktop_pool import DesktopPool
from arpo_verl.plugin.queue import TensorDict
from arpo_verl.plugin.run_watch import GO_ON, Lasting, RunWatch, in_words

FRUITLESS_BATCHES = 3
"""Batches' worth of useless prompts in a row after which the run ends. Such a cause does not go away by itself, and the
pool already waits for desktops before it gives up a session."""
CLOSING_S = 20.0
"""Seconds that a run may take to end by itself once it has closed the queue, for whose storage veRL waits up to 15 s.
What is played then fails."""
_OF_ENGINES = ("Actor", "RayTaskError", "GenerationError")
"""How names of errors begin that a request to an engine raises."""
_DEAD_ENGINE = re.compile(r"(RayTaskError|GenerationError)\b.*\bEngineDeadError\b")
"""vLLM's error once its EngineCore or a GPU's process has died. The server lives on, so Ray notes no death. It fails
each request at once, and so gets nearly all: veRL's router sends a request to the server that has the fewest."""


@dataclass(frozen=True)
class EndedPrompt:
    """A prompt all of whose sessions are over."""

    validates: bool
    num_sessions: int
    reasons: tuple[str, ...]
    """Why it lost sessions, one reason for each."""


class LostSessions:
    """Counts the sessions of a rollout worker's prompts that end in an error, whatever the error.

    Args:
        pool: counts dropped sessions too; None with another agent loop.
    """

    def __init__(self, pool: DesktopPool | None) -> None:
        self._pool = pool
        self._begun: Counter[str] = Counter()
        self._reasons: defaultdict[str, list[str]] = defaultdict(list)

    @asynccontextmanager
    async def session(self, uid: str, task_id: str) -> AsyncIterator[None]:
        """Wrap one session of prompt `uid`."""
        self._begun[uid] += 1
        try:
            yield
        except Exception as error:
            self._reasons[uid].append(in_words(error))
            if self._pool is not None:
                await self._pool.report_drop(task_id)
            raise

    def take(self, uid: str, validates: bool) -> EndedPrompt:
        """Return how a prompt ended, and forget it."""
        return EndedPrompt(validates, self._begun.pop(uid, 0), tuple(self._reasons.pop(uid, ())))


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

    def note(self, prompt: EndedPrompt) -> str:
        """Note that a prompt is over, and return why the run cannot go on, or ''."""
        if dead := next(filter(_DEAD_ENGINE.match, prompt.reasons), ""):
            return f"A rollout engine died, while its server lives on: {dead} {GO_ON}"
        if prompt.validates:
            return ""
        if not prompt.reasons or (self._keeps_partial and len(prompt.reasons) < prompt.num_sessions):
            self._in_a_row = 0
            self._errors.clear()
            self._examples.clear()
            return ""
        self._in_a_row += 1
        self._examples = {reason.partition(":")[0]: reason for reason in prompt.reasons} | self._examples
        self._errors.update(reason.partition(":")[0] for reason in prompt.reasons)
        if self._in_a_row < self._most:
            return ""
        causes = "; ".join(f"{number} times {self._examples[error]}" for error, number in self._errors.most_common(3))
        # What an engine or its node causes, a new start may end.
        kind = str if any(error.startswith(_OF_ENGINES) for error in self._errors) else Lasting
        return kind(
            f"The last {self._in_a_row} prompts all lost sessions, so no batch can be put together. The most frequent "
            f"reasons are: {causes}. Remove the reason. {GO_ON}"
        )


class Prompts:
    """The prompts that rollout workers play now.

    Args:
        workers: veRL's rollout workers.
        fruitless: is called for each prompt that is over.
        watch: learns of progress, and of what ends the run.
    """

    def __init__(self, workers: Sequence[ActorHandle[Any]], fruitless: FruitlessPrompts, watch: RunWatch) -> None:
        self._workers, self._fruitless, self._watch = workers, fruitless, watch
        self._playing: dict[ray.ObjectRef[EndedPrompt], int] = {}
        """Calls to workers, each with the worker's number."""
        self._lock = threading.Lock()
        self._fault, self._counts_from = "", 0.0
        watch.checks.append(self.check)

    def play(self, batch: TensorDict) -> None:
        """Give each prompt of veRL's batch to the worker with the fewest, and return before they are over."""
        self.check()
        with self._lock:
            loads = Counter(self._playing.values())
            for prompt in batch.chunk(len(batch)):
                number = min(range(len(self._workers)), key=lambda number: loads[number])
                loads[number] += 1
                self._playing[self._workers[number].play.remote(prompt)] = number

    def check(self) -> str:
        """Note the prompts that are over, and return why the run cannot go on, or ''."""
        with self._lock:
            calls = list(self._playing)
            for call in ray.wait(calls, num_returns=len(calls), timeout=0)[0] if calls else ():
                del self._playing[call]
                self._watch.moved()
                self._fault = self._fault or self._end_of(call)
            return self._fault if time.monotonic() >= self._counts_from else ""

    def _end_of(self, call: ray.ObjectRef[EndedPrompt]) -> str:
        try:
            return self._fruitless.note(ray.get(call))
        except ray.exceptions.ActorUnavailableError:  # it may play on, and the queue will say how the prompt ended
            return ""
        except ray.exceptions.RayError as error:
            self._counts_from = self._counts_from or time.monotonic() + CLOSING_S
            return f"A rollout worker failed to play a prompt. Ray says: {in_words(error)} {GO_ON}"
