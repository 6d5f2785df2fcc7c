"""The rules for what a replay may teach. Every door and every method of replay keeps them. Pure.

A replay enters only above what it is compared with (`gains`). It belongs to its task's content, not only to its id
(`task_content`), and fits this run's limits (`check_replayable`).
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from arpo_verl.errors import ReplayError
from arpo_verl.lib.images import read_image
from arpo_verl.lib.untrusted import printable
from arpo_verl.replay.trajectory import StoredRow, StoredTrajectory

NO_GAIN = "no_gain"
"""Counts groups that a method wanted a success for, but none of their task's is above what it is compared with."""
CHANGED_TASK = "changed_task"
"""Counts stored successes that a group could not get, since its task has another content now."""
_DESCRIPTIVE = ("id", "source", "trajectory", "related_apps", "fixed_ip", "possibility_of_env_change", "hint")
"""Fields of OSWorld's task files that decide nothing of what is played and judged."""
_LEAST_GAIN = 1e-5
"""Least gain, as a share of the largest reward: the trainer's float32 takes smaller ones for rounding."""
_MOST_REWARD = 1e18
"""In the trainer's float32 the square of a larger reward is infinite, and its group's advantages would be 0 or NaN."""


def gains(reward: float, replaced: float, others: Sequence[float]) -> bool:
    """Return whether a replay's advantage is above 0, for any sigma, and its reward above the one that it replaces.

    A stored reward may come from another reward function or weight than the group's rewards.

    Args:
        reward: the replay's.
        replaced: the reward of the rollout that it replaces.
        others: the rewards of the group's other rollouts; one at least.
    """
    rewards = (reward, replaced, *others)
    if not all(abs(one) < _MOST_REWARD for one in rewards):
        return False
    return reward - max(replaced, statistics.fmean(others)) > _LEAST_GAIN * max(map(abs, rewards))


def task_content(instruction: str, spec: object) -> str:
    """Return a hash of what decides how a task is played and judged: its instruction, set-up, evaluator and unknown
    fields. The hash is the same on every machine, wherever the file is and in whatever order its fields are.

    Args:
        spec: the task file's JSON, as text or as a mapping; None if a dataset has none.
    """
    plain = dict(spec) if isinstance(spec, Mapping) else spec
    return _hash(instruction, plain if isinstance(plain, str) else json.dumps(plain, default=str))


@functools.lru_cache(maxsize=1024)
def _hash(instruction: str, spec: str) -> str:
    try:
        fields = json.loads(spec, object_hook=_without_place)
    except ValueError:  # a dataset of somebody else's
        fields = spec
    if isinstance(fields, dict):
        fields = {name: value for name, value in fields.items() if name not in _DESCRIPTIVE}
    return sha256(json.dumps([instruction, fields], sort_keys=True).encode()).hexdigest()[:16]


def _without_place(value: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a task, without the folder of a web application on this machine (`tasks/cua_gym.py`)."""
    return {"port": value["port"]} if value.keys() == {"folder", "port"} else value


def reward_function(name: str | None, path: str | None, arguments: Mapping[str, Any]) -> str:
    """Return a reward function as text that can be compared; by default ours. A moved file is the same."""
    source = (path or "pkg://arpo_verl.reward").rpartition("/")[2]
    return f"{name if path else 'compute_score'} of {source} with {json.dumps(arguments, sort_keys=True, default=str)}"


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
    except Exception as error:  # also torch's and a trainer's, such as StopIteration for an image in two places
        raise ReplayError(
            f"a success of task {printable(trajectory.task_id)[:80]} in step {trajectory.step} cannot be replayed: "
            f"{printable(str(error))[:300]}"
        ) from error
