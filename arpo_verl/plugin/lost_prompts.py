"""Handle lost sessions: those that end in an error, and those of a dead rollout worker. A dead worker also leaves
unfinished prompts in veRL's queue, leased desktops, calls to rollout engines, and unfinished records."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arpo_verl.plugin import queue
from arpo_verl.plugin.queue import TRAINING, VALIDATION, TensorDict, plain
from arpo_verl.plugin.settings import connect_pool, load_settings
from arpo_verl.plugin.trainer_watch import in_words
from arpo_verl.pool.desktop_pool import DesktopPool
from arpo_verl.records.episode_folder import remove_unfinished
from arpo_verl.replay.choice import session_of, uid_of

logger = logging.getLogger(__name__)

MAX_STARTS = 3
"""Workers that one prompt may use up before we drop it: its content may be what kills them."""


@dataclass(eq=False)
class Prompt:
    """A prompt that is being played. One worker plays all its sessions."""

    batch: TensorDict
    """veRL's batch with only this prompt."""
    uid: str
    partition_id: str
    num_sessions: int
    task_id: str = ""
    died_at: list[int] = field(default_factory=list)
    """The places of the workers that died while they played it."""
    done: tuple[int, ...] = ()
    """Sessions whose rows are in the queue. They are not played again."""


def read_prompts(batch: TensorDict, rollout_config: Any) -> Iterator[Prompt]:
    """Yield the prompts of a batch that veRL gives to its workers."""
    validates = bool(plain(batch["validate"])) if "validate" in batch else False
    num_sessions = rollout_config.val_kwargs.n if validates else rollout_config.n
    for one in batch.chunk(len(batch)):
        row = {name: plain(one[name][0]) for name in ("uid", "extra_info", "__rollout_n__") if name in one}
        yield Prompt(
            one,
            str(row["uid"]),
            VALIDATION if validates else TRAINING,
            int(row.get("__rollout_n__", num_sessions)),
            str((row.get("extra_info") or {}).get("task_id", "")),
        )


@dataclass(frozen=True)
class _Left:
    """What the queue contains of a prompt."""

    status: str | None
    sessions: frozenset[int]
    """Sessions whose rows are complete."""
    torn: list[str]
    """Rows that the worker did not finish writing. veRL sets a row's tag last."""

    @classmethod
    def of(cls, uid: str, tags: Mapping[str, Mapping[str, Any]]) -> _Left:
        rows = {key: tag for key, tag in tags.items() if key != uid and uid_of(key) == uid}
        whole = {key for key, tag in rows.items() if tag.get("status") == "success"}
        status = tags[uid]["status"] if uid in tags else None
        return cls(status, frozenset(session_of(key) for key in whole), [key for key in rows if key not in whole])


class LostSessions:
    """Counts the sessions of a rollout worker's prompts that end in an error, whatever the error.

    It counts when the last session of a prompt ends, before veRL notes that the prompt is over. If the worker dies
    before that, `LostPrompts` counts instead. So each session is counted once.

    Args:
        pool: counts dropped sessions; None with another agent loop.
    """

    def __init__(self, pool: DesktopPool | None) -> None:
        self._pool = pool
        self._running: Counter[str] = Counter()
        self._reasons: defaultdict[str, list[str]] = defaultdict(list)

    @asynccontextmanager
    async def session(self, uid: str, task_id: str) -> AsyncIterator[None]:
        """Wrap one session of prompt `uid`."""
        self._running[uid] += 1
        await asyncio.sleep(0)  # veRL starts all sessions of a prompt together; this notes all before one ends
        try:
            yield
        except Exception as error:
            self._reasons[uid].append(in_words(error))
            raise
        finally:
            self._running[uid] -= 1
            if not self._running[uid]:
                del self._running[uid]
                if self._pool is not None:
                    for _ in self._reasons[uid]:
                        await self._pool.report_drop(task_id)

    def take(self, uid: str) -> list[str]:
        """Return why a finished prompt lost sessions: one reason for each."""
        return self._reasons.pop(uid, [])


class LostPrompts:
    """Cleans up after dead workers.

    Args:
        pool: leased their desktops, and counts dropped sessions; None with another agent loop.
        recorded_in: folder of their episodes' records.
        router: the rollout engines' router; None for veRL's own, which does not note its callers.
    """

    def __init__(self, pool: DesktopPool | None, recorded_in: str | None, router: Any = None) -> None:
        self._pool = pool
        self._router = router
        self._recorded_in = None if recorded_in is None else Path(recorded_in)

    @classmethod
    def of_config(cls, config: Any, router: Any = None) -> LostPrompts:
        """Create the job's pool here, if there is none yet: a pool made by a worker would die with the worker."""
        if config.actor_rollout_ref.rollout.agent.default_agent_loop != "gui_agent":
            return cls(None, None, router)
        return cls(connect_pool(config), load_settings(config).agent.recorded_in, router)

    async def settle(self, worker_id: str, place: int, prompts: Collection[Prompt], gives_up: bool) -> list[Prompt]:
        """Free the worker's desktops, and return the prompts that start again on another worker.

        Sessions with complete rows are not played again. A prompt that has used up `MAX_STARTS` workers is dropped: it
        keeps its complete rows, as after failed desktops, and its other sessions count as lost.

        Args:
            worker_id: Ray's name of the worker's actor.
            place: the worker's number.
            gives_up: start no prompt again.

        Returns:
            The prompts to start again.
        """
        if self._pool is not None:
            await self._pool.holder_died(worker_id)
        if self._router is not None:
            self._router.holder_died.remote(worker_id)
        left = await asyncio.to_thread(self._read, prompts)
        again: list[Prompt] = []
        dropped: list[Prompt] = []
        for prompt in prompts:
            found = left[prompt]
            if found.status == "running":
                prompt.died_at.append(place)
            if found.status not in ("pending", "running"):  # the prompt was over
                continue
            prompt.done = tuple(sorted(found.sessions))
            is_over = len(prompt.done) == prompt.num_sessions
            may_start = not gives_up and not is_over and len(prompt.died_at) < MAX_STARTS
            (again if may_start else dropped).append(prompt)
        for prompt in dropped:
            await self._drop(prompt, left[prompt])
        logger.warning("its prompts: %d start again, %d are dropped", len(again), len(dropped))
        return again

    def _read(self, prompts: Collection[Prompt]) -> dict[Prompt, _Left]:
        """Remove half-written rows and records of the prompts, and return the rest."""
        tags = {partition_id: queue.tags(partition_id) for partition_id in {each.partition_id for each in prompts}}
        left = {prompt: _Left.of(prompt.uid, tags[prompt.partition_id]) for prompt in prompts}
        for prompt, found in left.items():
            if found.torn:
                queue.clear(found.torn, prompt.partition_id)
        if self._recorded_in is not None:
            remove_unfinished(self._recorded_in, {prompt.uid for prompt in prompts})
        return left

    async def _drop(self, prompt: Prompt, left: _Left) -> None:
        """Count the lost sessions first, then set the status: the sampler reads the counts with the batch."""
        lost = prompt.num_sessions - len(left.sessions)
        if self._pool is not None:
            for _ in range(lost):
                await self._pool.report_drop(prompt.task_id)
        status = "failure" if lost else "finished"
        await asyncio.to_thread(queue.set_status, prompt.uid, prompt.partition_id, status)
