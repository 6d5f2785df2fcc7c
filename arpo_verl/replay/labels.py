"""A row's `uid` that also says which row it is, and whether it is a replay.

veRL reorders and pads a batch between sampler and estimator, and hands the estimator no more than rewards, masks and
each row's `uid`. A label equals the plain uid in everything else, so groups stay groups, for stock estimators too.

Labels travel through TransferQueue as pickles: its storage processes import this module, which imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def rows_to_episodes(index: Sequence[object]) -> tuple[list[int], list[int]]:
    """Which rows are of one episode: a group's statistics are over episodes, of which one may have several rows.

    Returns:
        The last row of each episode, by position, and for each row the number of its episode. A row without a label is
        an episode of its own.
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
    """The rows that carry a label, by position; veRL's padding rows carry none."""
    return {row: uid for row, uid in enumerate(index) if isinstance(uid, RowLabel)}
