"""How the estimator speaks to the sampler, which runs before it in the same process: metrics known only once the rows
are scored.

veRL logs what `sample()` returns, takes 0-dim tensors for numbers, passes over empty ones, and reads them after the
update. So the sampler returns empty tensors, and the estimator gives them a value. What is never filled is not logged.
The other way, what the estimator must know of a row travels in its `uid`: `arpo_verl.replay.labels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch


class LateMetrics:
    """The open metrics of the batch at hand."""

    def __init__(self) -> None:
        self._cells: dict[str, torch.Tensor] = {}

    def open(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Begin a batch: one empty tensor a name. Those of the batch before are left as they are."""
        self._cells = {name: torch.empty(0, dtype=torch.float64) for name in names}
        return dict(self._cells)

    def fill(self, values: Mapping[str, float]) -> None:
        """Give open metrics their values; other names are passed over."""
        for name, value in values.items():
            if name in self._cells:
                self._cells[name].resize_(()).fill_(value)


REPLAY_LOG_PROBS: dict[str, float] = {}
"""Of this process and the last batch's replays, by the key of the first row: what the store will know of them."""

LATE_METRICS = LateMetrics()
"""Of this process: veRL makes sampler and estimator apart, and runs both in the trainer's, one batch at a time."""
