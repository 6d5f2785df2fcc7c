"""The turns of a batch as the estimator finds them: which tokens are whose, and what each turn came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch

from arpo_verl.errors import ReplayError
from arpo_verl.plugin import queue
from arpo_verl.plugin.rollout_output import THUMBNAILS
from arpo_verl.plugin.step_credit import EpisodeTurns, StepCreditConfig, anchor_credit, credit_metrics
from arpo_verl.replay.labels import RowLabel
from arpo_verl.rollout.screen import stack


class _Span(NamedTuple):
    """Where the tokens of a reply are in the estimator's tensors."""

    row: int
    start: int
    stop: int


def turn_advantages(
    labels: Mapping[int, RowLabel],
    episodes: Sequence[int],
    rewards_E: torch.Tensor,
    width: int,
    config: StepCreditConfig,
    partition_id: str = queue.TRAINING,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The part of each token's advantage that is its turn's, in units of reward; and `CREDIT_METRICS`.

    Args:
        labels: by position in the estimator's tensors; padding has none, and gets 0.
        episodes: of each row, the number of its episode.
        rewards_E: of each episode.
        width: T, to which veRL padded the batch.

    Returns:
        (B, T), 0 but where the policy wrote.

    Raises:
        ReplayError: the rows have no thumbnails.
    """
    advantages_BT = torch.zeros(len(episodes), width, dtype=rewards_E.dtype)
    by_episode: dict[int, list[int]] = {}
    for row in sorted(labels, key=lambda row: int(labels[row].key.rsplit("_", 1)[1])):
        by_episode.setdefault(episodes[row], []).append(row)
    if not by_episode:
        return advantages_BT, {}
    spans, thumbnails = _read(labels, by_episode, partition_id)
    first = {number: labels[rows[0]] for number, rows in by_episode.items()}
    credits = anchor_credit(
        [
            EpisodeTurns(str(label), float(rewards_E[number]), stack(thumbnails[number]), label.is_replay)
            for number, label in first.items()
        ],
        config,
    )
    for number, credit in zip(by_episode, credits, strict=True):
        for span, advantage in zip(spans[number], credit.advantages_T.tolist(), strict=True):
            advantages_BT[span.row, span.start : span.stop] = config.weight * advantage
    return advantages_BT, credit_metrics(credits)


def _read(
    labels: Mapping[int, RowLabel], by_episode: Mapping[int, Sequence[int]], partition_id: str
) -> tuple[dict[int, list[_Span]], dict[int, list[bytes]]]:
    """Of each episode, the tokens of its replies, in order, and the screens that they reply to."""
    keys = [labels[row].key for rows in by_episode.values() for row in rows]
    # As the rollout wrote it: in the estimator's a rollout correction may have rejected tokens.
    data = queue.read(keys, partition_id, ["response_mask", THUMBNAILS])
    if THUMBNAILS not in data.keys():
        raise ReplayError(
            f"algorithm.step_credit.kind=anchor_states compares screens by the rows' {THUMBNAILS}, but {keys[0]} has "
            "none; train with the agent loop `gui_agent`, or set it to none"
        )
    columns = zip(data["response_mask"].unbind(), (queue.plain(shown) for shown in data[THUMBNAILS]), strict=True)
    spans: dict[int, list[_Span]] = {}
    screens: dict[int, list[bytes]] = {}
    for number, rows in by_episode.items():
        shown: list[bytes] = []
        spans[number], screens[number] = [], []
        for row in rows:
            mask, new = next(columns)
            shown += new
            replies = [_Span(row, *run) for run in _runs(mask.tolist())]
            # A row ends with a reply, and each before it was written when the screenshot after it was not there yet.
            screens[number] += shown[len(shown) - len(replies) :]
            spans[number] += replies
    return spans, screens


def _runs(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of ones."""
    for is_reply, run in groupby(range(len(mask)), key=mask.__getitem__):
        positions = list(run)
        if is_reply:
            yield positions[0], positions[-1] + 1
