"""The rules for what a replay may teach. Every door and every method of replay keeps them. Pure.

A replay enters only above what it is compared with (`gains`), and fits this run's limits (`check_replayable`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from arpo_verl.errors import ReplayError
from arpo_verl.images import read_image
from arpo_verl.replay.trajectory import StoredRow, StoredTrajectory
from arpo_verl.untrusted import printable

NO_GAIN = "no_gain"
"""Counts failed groups that get no replay, since none of their task's successes has a reward above theirs."""
_LEAST_GAIN = 1e-5
"""Least gain, as a share of the largest reward: the trainer's float32 cannot tell smaller ones from rounding."""


def gains(reward: float, replaced: float, others: Sequence[float]) -> bool:
    """Return whether a replay's advantage is above 0, for any sigma, and its reward above the one that it replaces.

    A stored reward may come from another reward function or weight than the group's rewards.

    Args:
        reward: the replay's.
        replaced: the reward of the rollout that it replaces.
        others: the rewards of the group's other rollouts; one at least.
    """
    rewards = (reward, replaced, *others)
    if not all(map(math.isfinite, rewards)):
        return False
    return reward - max(replaced, statistics.fmean(others)) > _LEAST_GAIN * max(map(abs, rewards))


class RowLimits(NamedTuple):
    """Most tokens of a row in this run, and how many tokens its policy knows."""

    first_prompt: int
    """Most tokens of the prompt with which an episode begins; later rows repeat the history in theirs."""
    response: int
    total: int
    vocabulary: int

    def check(self, row: StoredRow, is_first: bool) -> None:
        """Refuse a row that this run could not make.

        Raises:
            ReplayError: says which limit it exceeds.
        """
        prompt, response = len(row.prompt_ids), len(row.response_ids)
        for what, got, most in (
            ("a prompt's tokens", prompt, self.first_prompt if is_first else self.total),
            ("a response's tokens", response, self.response),
            ("a row's tokens", prompt + response, self.total),
            ("its token ids", max(*row.prompt_ids, *row.response_ids), self.vocabulary - 1),
        ):
            if got > most:
                raise ReplayError(f"{what} must be at most {most} in this run, got {got}")


Show = Callable[[Sequence[bytes], Sequence[int], Mapping[str, Any] | None], object]
"""(a row's screenshots, its tokens, the processor's own arguments): raises an error if they do not fit."""


def check_replayable(trajectory: StoredTrajectory, limits: RowLimits, show: Show) -> None:
    """Refuse a success that would end the run when it is replayed: a store may come from somebody else, or from a run
    with other limits.

    Raises:
        ReplayError: says what is wrong.
    """
    try:
        for screenshot in trajectory.screenshots:
            read_image(screenshot)
        for number, row in enumerate(trajectory.each_row()):
            limits.check(row, is_first=number == 0)
            shown = [trajectory.screenshots[place] for place in row.screenshots]
            show(shown, [*row.prompt_ids, *row.response_ids], trajectory.mm_processor_kwargs)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:  # also torch's and a trainer's
        raise ReplayError(
            f"a success of task {printable(trajectory.task_id)[:80]} in step {trajectory.step} cannot be replayed: "
            f"{printable(str(error))[:300]}"
        ) from error
