"""Counts of a training step that is made of several batches.

veRL's `separate_async` updates `parameter_sync_step` times a step, and logs of each metric the mean over its batches,
but for names that hold `sum`, `max` or `min` (`trainer/ppo/v1/utils.py: MetricsAggregator`). The mean of a count is
none. So counts are held back, and the step's last batch tells their sum: veRL's mean of one value is that value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any


class StepMetrics:
    """Of the step at hand.

    Args:
        num_batches: of a step.
        counts: names to be summed.
        levels: names of which the last value counts.
    """

    def __init__(self, num_batches: int, counts: Collection[str], levels: Collection[str]):
        self._num_batches = num_batches
        self._counts, self._levels = frozenset(counts), frozenset(levels)
        self._sums: Counter[str] = Counter()

    def is_last(self, batch: int) -> bool:
        """Whether the step ends with this batch, counted from 0."""
        return batch == self._num_batches - 1

    def of_batch(self, batch: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What veRL is to be told with this batch, so that what it logs is right for the step."""
        if batch == 0:
            self._sums.clear()
        self._sums.update({name: value for name, value in metrics.items() if name in self._counts})
        if self.is_last(batch):
            return {**metrics, **self._sums}
        return {name: value for name, value in metrics.items() if name not in self._counts | self._levels}
