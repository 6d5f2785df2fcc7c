"""How the parts of the trainer's process speak to each other. The estimator to the sampler, which runs before it:
metrics known only once the rows are scored. Who watches beside the trainer's thread, to that thread: an error.

veRL logs what `sample()` returns, takes 0-dim tensors for numbers, passes over empty ones, and reads them after the
update. So the sampler returns empty tensors, and the estimator gives them a value. What is never filled is not logged.
The other way, what the estimator must know of a row travels in its `uid`: `arpo_verl.replay.labels`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import torch

logger = logging.getLogger(__name__)


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


class TrainerFault:
    """An error that was found beside the trainer's thread, and that this thread raises where it next waits."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def tell(self, error: BaseException) -> None:
        """Have the trainer end with this error, unless there is an earlier one."""
        logger.error("the run ends: %s", error)
        self._error = self._error or error

    def check(self) -> None:
        """Raise the error, where there is one."""
        if self._error is not None:
            raise self._error


LATE_METRICS = LateMetrics()
"""Of this process: veRL makes sampler and estimator apart, and runs both in the trainer's, one batch at a time."""

TRAINER_FAULT = TrainerFault()
"""Of this process: the rollout workers' watch tells it, the sampler and whoever hands out prompts raise it."""
