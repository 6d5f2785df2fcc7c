"""Plan the replays of a batch from the successes that this run can replay."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from arpo_verl.errors import ReplayError
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group
from arpo_verl.replay.methods.base import Replay, ReplayMethod
from arpo_verl.replay.rules import CHANGED_TASK, NO_GAIN
from arpo_verl.replay.store.success_store import Candidate, SuccessStore
from arpo_verl.replay.trajectory import StoredTrajectory

logger = logging.getLogger(__name__)


class ReplayPlanner:
    """Chooses replays and checks them, for every trainer. A bad success in the store never ends a run.

    Args:
        method: chooses.
        check: raises `ReplayError` if this run cannot replay the success.
    """

    def __init__(
        self,
        method: ReplayMethod,
        store: SuccessStore,
        config: ReplayConfig,
        check: Callable[[StoredTrajectory], None],
    ) -> None:
        self._method, self._store, self._config, self._check = method, store, config, check
        self._sound: set[int] = set()
        self._num_removed = 0
        self._left_out: Counter[str] = Counter()

    def plan(self, groups: Sequence[Group], step: int, draw: int = 0) -> tuple[Replay, ...]:
        """Return what the method chooses. What cannot be replayed leaves the store, and another may be chosen."""
        while True:
            self._left_out.clear()
            chosen = self._method.choose(groups, self._store, self._config, step, draw, self._left_out)
            if all([self._keep_if_sound(replay.candidate) for replay in chosen]):
                return chosen

    def take_counts(self) -> dict[str, int]:
        """Return metrics: what left the store since the last call, and what the last plan left out."""
        counts = {
            "replay/unusable": self._num_removed,
            "replay/no_gain": self._left_out[NO_GAIN],
            "replay/changed_task": self._left_out[CHANGED_TASK],
        }
        self._num_removed = 0
        self._left_out.clear()
        return counts

    def _keep_if_sound(self, candidate: Candidate) -> bool:
        """Return whether it can be replayed, and remove it from the store if not. Each is checked once."""
        if candidate.serial not in self._sound:
            try:
                self._check(self._store.trajectory(candidate.serial))
            except ReplayError as error:
                logger.warning("removed from the store: %s", error)
                self._store.remove(candidate.serial)
                self._num_removed += 1
                return False
            self._sound.add(candidate.serial)
        return True
