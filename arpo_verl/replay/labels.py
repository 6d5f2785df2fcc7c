"""Extend a row's `uid` so that it also says which row it is, and whether it is a replay.

veRL reorders and pads a batch between sampler and estimator, and gives the estimator only rewards, masks and each row's
`uid`. A label equals the plain uid in everything else, so groups stay groups, also for stock estimators.

Labels travel through TransferQueue as pickles. Its storage processes import this module, so it imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

REPLAYED = "replayed"
"""Key in a replayed row's `extra_fields` and tag; in `extra_fields` its value is the step of the trajectory."""


class RowLabel(str):
    """A prompt's uid that also names one row of its rollouts."""

    key: str
    """The row's key in TransferQueue."""
    is_replay: bool
    has_log_probs: bool
    """Whether the row has the `rollout_log_probs` of the policy that wrote it."""
    advantage: float | None
    """The advantage that the replay method gave a replay, which then is no member of its group's statistics."""

    def __new__(
        cls, uid: str, key: str, is_replay: bool = False, has_log_probs: bool = True, advantage: float | None = None
    ) -> RowLabel:
        label = super().__new__(cls, uid)
        label.key, label.is_replay, label.has_log_probs, label.advantage = key, is_replay, has_log_probs, advantage
        return label

    def __reduce__(self) -> tuple[type[RowLabel], tuple[str, str, bool, bool, float | None]]:
        return RowLabel, (str(self), self.key, self.is_replay, self.has_log_probs, self.advantage)


def rows_to_episodes(index: Sequence[object]) -> tuple[list[int], list[int]]:
    """Find the rows of each episode: a group's statistics count episodes, which may have several rows.

    Returns:
        The position of each episode's last row, and the episode's number for each row. A row without a label is an
        episode of its own.
    """
    numbers: dict[object, int] = {}
    last: list[tuple[int, int]] = []
    episodes = []
    for position, uid in enumerate(index):
        episode, row = uid.key.rsplit("_", 1) if isinstance(uid, RowLabel) else (position, 0)
        number = numbers.setdefault(episode, len(numbers))
        if number == len(last):
            last.append((int(row), position))
        last[number] = max(last[number], (int(row), position))
        episodes.append(number)
    return [position for _, position in last], episodes


def labelled_rows(index: Iterable[object]) -> dict[int, RowLabel]:
    """Return the rows with a label, by position; veRL's padding rows have none."""
    return {row: uid for row, uid in enumerate(index) if isinstance(uid, RowLabel)}
