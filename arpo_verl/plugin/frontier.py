"""Frontier sampling in the stock trainer: the dataset draws from the frontier, the sampler tells it what came of it.

veRL 0.9.1 makes its data sampler itself, random or sequential (`create_rl_sampler`), and takes no other. But the
trainer fetches each row through the dataset, at the moment when it is to be played, and its `StatefulDataLoader` saves
and restores a dataset's own state with a checkpoint. Both ends are in the trainer's process, in all three modes.
"""

from __future__ import annotations

from collections.abc import Iterable

from arpo_verl.replay.choice import Group
from arpo_verl.tasks.frontier import Frontier


class TrainingFrontier:
    """Of the training data that this process draws from."""

    def __init__(self) -> None:
        self.frontier: Frontier | None = None
        """None while tasks come in veRL's order."""

    def record(self, step: int, groups: Iterable[Group], success_threshold: float) -> None:
        """Tell it what groups came to as they were played, before any replay; those thrown away too.

        Args:
            step: the training step at hand.
            success_threshold: least score of a success.
        """
        if self.frontier is not None:
            for group in groups:
                solved = sum(outcome.success >= success_threshold for outcome in group.outcomes)
                self.frontier.record(step, group.task_id, solved, len(group.outcomes) - solved)

    def metrics(self) -> dict[str, float]:
        """`frontier/*`; none without a frontier."""
        return {} if self.frontier is None else self.frontier.metrics()


TRAINING_FRONTIER = TrainingFrontier()
"""Of this process: veRL makes dataset and sampler apart, both in the trainer's."""
