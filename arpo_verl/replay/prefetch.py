"""Work ahead of the batch: rebuild replays for groups that have already failed, while others still generate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from arpo_verl.replay.groups import Outcome, episode_of, form_groups
from arpo_verl.replay.methods.base import Replay
from arpo_verl.replay.store.success_store import Candidate

Rebuild = Callable[[Candidate], Iterable[Mapping[str, Any]]]


class Prefetch:
    """Caches outcomes that were read and rows that were rebuilt for the unfinished batch.

    It is only a cache: the replays are chosen when the batch is complete, and missing ones are rebuilt then.

    Args:
        capacity: most rebuilt successes that may wait in memory.
        read: returns the outcomes of the episodes that finished rows belong to, by the rows' keys.
        plan: returns the replays that the groups so far need.
        rebuild: returns the fields of a success's rows, with its screenshots from the store. This is the slow part.
    """

    def __init__(
        self,
        capacity: int,
        read: Callable[[list[str]], list[Outcome]],
        plan: Callable[[tuple[Any, ...]], tuple[Replay, ...]],
        rebuild: Rebuild,
    ) -> None:
        self._capacity = capacity
        self._read, self._plan, self._rebuild = read, plan, rebuild
        self._outcomes: dict[str, Outcome] = {}
        self._rebuilt: list[tuple[Candidate, tuple[Mapping[str, Any], ...]]] = []
        self.seconds = 0.0
        """Seconds spent ahead since the last `clear`."""
        self.hits = 0
        """Rebuilt successes that were used since the last `clear`."""

    def rebuild_next(self, keys: Iterable[str]) -> bool:
        """Rebuild at most one replay that the groups need that are complete so far.

        Returns:
            Whether one was rebuilt, so that another call may find more to do.
        """
        start_s = time.perf_counter()
        outcomes = self.outcomes(keys)
        if len(self._rebuilt) >= self._capacity:
            return False
        for replay in self._plan(form_groups(outcomes)):
            if self._find(replay.candidate) is None:
                self._rebuilt.append((replay.candidate, tuple(self._rebuild(replay.candidate))))
                self.seconds += time.perf_counter() - start_s
                return True
        self.seconds += time.perf_counter() - start_s
        return False

    def outcomes(self, keys: Iterable[str]) -> list[Outcome]:
        """Return the outcomes of the episodes of these rows, in the order of `keys`. Each is read once."""
        keys = list(keys)
        new = [key for key in keys if episode_of(key) not in self._outcomes]
        self._outcomes.update({outcome.key: outcome for outcome in self._read(new)})
        return [self._outcomes[episode] for episode in dict.fromkeys(map(episode_of, keys))]

    def rebuilt(self, candidate: Candidate) -> Iterable[Mapping[str, Any]]:
        """Return the fields of the success's rows, rebuilt before or rebuilt now one by one."""
        found = self._find(candidate)
        if found is not None:
            self.hits += 1
            return found
        return self._rebuild(candidate)

    def clear(self) -> None:
        """Forget everything, since the batch is done."""
        self._outcomes.clear()
        self._rebuilt.clear()
        self.seconds, self.hits = 0.0, 0

    def _find(self, candidate: Candidate) -> tuple[Mapping[str, Any], ...] | None:
        return next((rows for other, rows in self._rebuilt if other == candidate), None)
