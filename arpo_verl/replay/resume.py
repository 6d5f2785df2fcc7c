"""From where in a past success the rollouts of a task that keeps failing begin: a reverse curriculum. Pure.

The first rollouts begin with the success's last two steps left to the policy, and the start moves back as the task is
solved from there, until they begin at the beginning again. What the policy writes from there on is its own, so nothing
is off-policy.

Sources: Florensa et al., "Reverse Curriculum Generation", arXiv 1707.05300; Salimans and Chen, "Learning Montezuma's
Revenge from a Single Demonstration", arXiv 1812.03381, who move the start back where a fifth of the rollouts succeed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from arpo_verl.replay.choice import Group, Start, usable_candidates
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.replay.trajectory import StoredTrajectory


@dataclass(frozen=True)
class Resumption:
    """What a group's rollouts begin with."""

    start: Start
    trajectory: StoredTrajectory
    """The success of which they take the first `start.steps` steps."""

    @property
    def replies(self) -> list[list[int]]:
        """The tokens of those steps' replies."""
        return _replies(self.trajectory)[: self.start.steps]

    @property
    def screenshots(self) -> tuple[bytes, bytes]:
        """What the success saw before them, and after."""
        return self.trajectory.screenshots[0], self.trajectory.screenshots[self.start.steps]


LEAST_LEFT = 2
"""Steps of a success that are left to the policy at first, and at least: a success's last reply often only says that
the task is done, which is no skill to learn."""


@dataclass
class _Task:
    failed: int = 0
    """Groups in a row, from the beginning, that all failed."""
    left: int = LEAST_LEFT
    """Steps of a success that are left to the policy where it resumes."""
    drawn: int = 0
    """Resumptions so far."""


class Curriculum:
    """Of a run's tasks, by their id.

    Groups may be recorded later than others were drawn, as asynchronous trainers do it: each moves the start from where
    it was itself played.
    """

    def __init__(self, config: ReplayConfig):
        self._config = config
        self._tasks: dict[str, _Task] = {}

    def draw(self, task_id: str, store: SuccessStore, step: int) -> Resumption | None:
        """What the task's next group begins with; None: nothing, it begins at the beginning.

        The success is drawn by `replay.choice` among those that a replay could be, and by nothing but seed, task and
        how often it was drawn: not by the order in which rollouts end.

        Args:
            step: the training step at hand.
        """
        task = self._tasks.get(task_id, _Task())
        if task.failed < self._config.resume_after:
            return None
        rng = random.Random(f"{self._config.seed}/{task_id}/{task.drawn}")
        candidates = usable_candidates(store, task_id, self._config, step, rng)
        if not candidates:
            return None
        self._tasks[task_id] = task
        task.drawn += 1
        trajectory = store.trajectory(candidates[0].serial)
        length = len(_replies(trajectory))
        if length <= task.left or len(trajectory.screenshots) != length:
            return None
        store.mark_replayed(candidates[0])
        return Resumption(Start(length - task.left, task.left), trajectory)

    def record(self, groups: Iterable[Group]) -> None:
        """Take what the groups of a batch came to as they were played. Those of a task that began alike are taken
        together, whatever their order."""
        groups = list(groups)
        resumed = {group.uid for group in groups if group.start.steps}
        alike: dict[tuple[str, Start], list[Group]] = {}
        for group in groups:
            if not group.start.missed or group.uid not in resumed:
                alike.setdefault((group.task_id, group.start), []).append(group)
        for (task_id, start), of in sorted(alike.items()):
            task = self._tasks.setdefault(task_id, _Task())
            together = Group(task_id, tuple(outcome for group in of for outcome in group.outcomes))
            if start.missed:  # none of their sessions came to the recorded state: try an earlier one
                task.left = max(task.left, start.left + self._config.resume_stride)
            elif start.steps:
                self._move(task, together)
            else:
                self._count(task, together, len(of))

    def _count(self, task: _Task, group: Group, count: int) -> None:
        """From the beginning; also those that had so much left that this is where they began."""
        if not group.all_failed(self._config):
            task.failed = 0
            return
        if task.failed >= self._config.resume_after:
            task.left = max(LEAST_LEFT, task.left - 1)
        task.failed += count

    def _move(self, task: _Task, group: Group) -> None:
        """Where the next ones begin: earlier, later or at the same point, at which the members differed."""
        if group.mean >= self._config.resume_solved:
            task.left = max(task.left, group.start.left + self._config.resume_stride)
        elif group.all_failed(self._config):
            task.left = max(LEAST_LEFT, min(task.left, group.start.left - 1))

    def metrics(self) -> dict[str, float]:
        """`curriculum/tasks_failing`: tasks that resume where they have a success; `curriculum/left_mean`: steps left
        to the policy where they do."""
        failing = [task for task in self._tasks.values() if task.failed >= self._config.resume_after]
        left = sum(task.left for task in failing)
        return {"curriculum/tasks_failing": len(failing), "curriculum/left_mean": left / max(1, len(failing))}

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, in plain values."""
        return {task_id: [task.failed, task.left, task.drawn] for task_id, task in self._tasks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._tasks = {task_id: _Task(*numbers) for task_id, numbers in state.items()}


def _replies(trajectory: StoredTrajectory) -> list[list[int]]:
    return [reply for row in trajectory.each_row() for reply in row.replies()]
