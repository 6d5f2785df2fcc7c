"""Credit within an episode: what each turn came to, against other rollouts that stood before the same screen. Pure.

Source: GiGPO (arXiv 2505.10978), whose anchor states these are; where it would bias the gradient, ours departs from it.
A baseline may depend on the state in which a reply was written, never on the reply or on what came of it
(verl-project/verl#7244: one whose number of terms the policy chooses by stopping pays it for its length). So a turn is
compared with *other* rollouts only, each of which counts once, by its first turn before that screen: GiGPO's mean has
the rollout's own returns to the screen in it, of which there are more the longer it goes round in circles.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from arpo_verl.config import build_config, check_fields, number, one_of, whole
from arpo_verl.plugin.sections import plain_section
from arpo_verl.rollout.screen import CELLS, same_screens

NONE, ANCHOR_STATES = KINDS = ("none", "anchor_states")

CREDIT_METRICS = ("credit/anchored_share", "credit/anchor_group_size")
"""The share of turns that another rollout of the group is compared with; and how many rollouts, with their own, those
are compared among, on average."""

_SECTION = "algorithm.step_credit"


@dataclass(frozen=True)
class StepCreditConfig:
    """The recipe's `algorithm.step_credit`: whether turns of one episode differ in their advantages."""

    kind: Annotated[str, one_of(KINDS)] = NONE
    """`none`: all tokens of an episode get its advantage; the paper's. `anchor_states`: and each turn, `weight` times
    what it came to beyond the mean of the group's other rollouts that stood before the same screen."""

    weight: Annotated[float, number(lambda x: x > 0, "above 0", "algorithm.step_credit.kind=none is without")] = 1.0
    """omega, of the turn's part beside the episode's. GiGPO's 1."""

    discount: Annotated[float, number(lambda x: 0 < x <= 1, "in (0, 1]")] = 0.95
    """gamma: of the reward, for each turn that was still to come. Below 1 a turn that leads nowhere costs something in
    successes too. GiGPO's 0.95."""

    tolerance: Annotated[int, whole(0, f"a whole number from 0, of {CELLS} cells")] = 8
    """Cells in which two screens may differ and still be the same, of 64 x 48: room for the pointer at two places, a
    caret and a clock. More takes unlike states for one, which costs precision and biases nothing."""

    def __post_init__(self) -> None:
        check_fields(self, _SECTION)


def step_credit_of(algorithm: Mapping[str, Any] | None) -> StepCreditConfig:
    """The options in the recipe's `algorithm`; without any, none.

    Raises:
        ConfigError: one of them is wrong.
    """
    section = None if algorithm is None else algorithm.get("step_credit")
    return build_config(StepCreditConfig, _SECTION, None if section is None else plain_section(_SECTION, section))


@dataclass(frozen=True)
class EpisodeTurns:
    """An episode by its turns, in order, over all of its rows."""

    group: Hashable
    reward: float
    """Of the whole episode, given with its last turn."""
    screens_TC: NDArray[np.uint8] = field(repr=False)
    """Thumbnails of the screens that its turns replied to."""
    is_replay: bool = False

    def returns(self, discount: float) -> NDArray[np.float64]:
        """Of each turn: the reward, discounted by the turns that came after it."""
        num_turns = len(self.screens_TC)
        return self.reward * discount ** np.arange(num_turns - 1, -1, -1, dtype=np.float64)


@dataclass(frozen=True)
class StepCredit:
    """Of the turns of one episode."""

    advantages_T: NDArray[np.float64]
    """Return less the mean of those compared with, in units of reward; 0 where there is no other."""
    compared_T: NDArray[np.int64]
    """With how many other rollouts."""


def anchor_credit(episodes: Sequence[EpisodeTurns], config: StepCreditConfig) -> list[StepCredit]:
    """What each turn came to beyond the group's other rollouts that stood before the same screen.

    A turn t of episode i before screen s: A = gamma^(T_i - 1 - t) r_i - mean over j of gamma^(T_j - 1 - t_j) r_j, j the
    other rollouts of the group that were ever shown s, t_j the first time.

    A replay is compared with the group's own rollouts, and none of them with it: they are the policy's, and a replay is
    there because all of them failed, so that a baseline with it in would depend on what came of their own turns.
    """
    members: dict[Hashable, list[int]] = {}
    for number_, episode in enumerate(episodes):
        members.setdefault(episode.group, []).append(number_)
    returns = [episode.returns(config.discount) for episode in episodes]
    sums = [np.zeros(len(of)) for of in returns]
    counts = [np.zeros(len(of), np.int64) for of in returns]

    def compare(i: int, j: int, is_same_TU: NDArray[np.bool_]) -> None:
        """Take episode j into the baseline of episode i's turns."""
        if not episodes[j].is_replay and is_same_TU.size:
            met_T = is_same_TU.any(axis=1)
            sums[i][met_T] += returns[j][is_same_TU.argmax(axis=1)[met_T]]
            counts[i][met_T] += 1

    for group in members.values():
        for position, i in enumerate(group):
            for j in group[:position]:
                is_same_TU = same_screens(episodes[i].screens_TC, episodes[j].screens_TC, config.tolerance)
                compare(i, j, is_same_TU)
                compare(j, i, is_same_TU.T)
    return [
        StepCredit(np.where(count > 0, of - total / np.maximum(count, 1), 0.0), count)
        for of, total, count in zip(returns, sums, counts, strict=True)
    ]


def credit_metrics(credits: Sequence[StepCredit]) -> dict[str, float]:
    """`CREDIT_METRICS`, of at least one turn; the second only where there is an anchor."""
    compared_N = np.concatenate([credit.compared_T for credit in credits])
    anchored_N = compared_N[compared_N > 0]
    values = [len(anchored_N) / len(compared_N)] + ([float(anchored_N.mean()) + 1] if len(anchored_N) else [])
    return dict(zip(CREDIT_METRICS, values, strict=False))
