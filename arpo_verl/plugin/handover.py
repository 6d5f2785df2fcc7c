"""How the sampler speaks to the estimator, which runs later in the same process, once the rows are scored.

veRL reorders and pads a batch between the two, and hands the estimator no more than rewards, masks and each row's
`uid`. So a row's `uid` also says which row it is, and whether it is a replay (`RowLabel`): a label equals the plain uid
in everything else, so groups stay groups, for stock estimators too.

The other way, metrics that are known only then (`LateMetrics`): veRL logs what `sample()` returns, takes 0-dim tensors
for numbers, passes over empty ones, and reads them after the update. So the sampler returns empty tensors, and the
estimator gives them a value. What is never filled is not logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

REPLAYED = "replayed"
"""Key in a replayed row's `extra_fields` and tag; its value in `extra_fields` is the step that made the trajectory."""


class RowLabel(str):
    """A prompt's uid, which also names the row of one of its rollouts."""

    key: str
    """The row's key in TransferQueue."""
    is_replay: bool
    has_log_probs: bool
    """Whether the row's `rollout_log_probs` are those of the policy that wrote it."""

    def __new__(cls, uid: str, key: str, is_replay: bool = False, has_log_probs: bool = True) -> RowLabel:
        label = super().__new__(cls, uid)
        label.key, label.is_replay, label.has_log_probs = key, is_replay, has_log_probs
        return label

    def __reduce__(self) -> tuple[type[RowLabel], tuple[str, str, bool, bool]]:
        return RowLabel, (str(self), self.key, self.is_replay, self.has_log_probs)


def labelled_rows(index: Iterable[object]) -> dict[int, RowLabel]:
    """The rows that carry a label, by position; veRL's padding rows carry none."""
    return {row: uid for row, uid in enumerate(index) if isinstance(uid, RowLabel)}


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


LATE_METRICS = LateMetrics()
"""Of this process: veRL makes sampler and estimator apart, and runs both in the trainer's, one batch at a time."""
