"""Turn an evaluated episode into a reward, with the recipe's reward function, whose result is checked first."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from arpo_verl.agent.rollout.episode import Episode
from arpo_verl.errors import ConfigError, GenerationError
from arpo_verl.types import StopReason, finite_number

# Every row has these beside the function's own values: veRL takes the names in the first row for all rows.
EXTRA = ("success", "format_error", "desktop_ended", "unclear_losses")
_COLUMN = "veRL's validation_data_dir has a column of this name"
RESERVED: Mapping[str, str] = {
    "reward": "veRL keeps the rewards themselves under this name and would average yours with them",
    "acc": "veRL would use it for validation instead of the reward, and count episodes lost to infrastructure as 0",
    **dict.fromkeys(("input", "output", "gts", "step", "uid"), _COLUMN),
}
"""Names that a reward function must not return, and why. veRL 0.9.1: `trainer/ppo/v1/trainer_base.py` (`_validate`,
`_write_generations`, `_val_metrics_update`) and `trainer/ppo/metric_utils.py: process_validation_metrics`."""


@dataclass(frozen=True)
class Score:
    """The reward, and what veRL averages beside it in training and validation."""

    reward: float
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


async def score_episode(
    function: Callable[..., Any],
    episode: Episode,
    solution: str,
    row: Mapping[str, Any],
    unclear_losses: int = 0,
    partial_credit: float = 0.0,
) -> Score:
    """Call the reward function here, as veRL's reward manager would, but without processing screenshots again.

    Args:
        function: such as `compute_score`: (data_source, solution_str, ground_truth, extra_info) -> number or dict.
        solution: the text of the whole response.
        row: the dataset row. The function gets its `extra_info`, with the outcome of the episode.
        unclear_losses: earlier attempts that were lost, perhaps through the policy.
        partial_credit: weight of the share of checks that were met; 0 outside training.

    Raises:
        ConfigError: the function raises, or returns what `read_result` refuses.
        GenerationError: the function's server gave no answer. Nothing of the episode is scored.
    """
    task_id = episode.task.task_id
    arguments = {
        "data_source": row.get("data_source"),
        "solution_str": solution,
        "ground_truth": (row.get("reward_model") or {}).get("ground_truth"),
        "extra_info": {**(row.get("extra_info") or {}), **_outcome(episode, partial_credit)},
    }
    began = time.perf_counter()
    if inspect.iscoroutinefunction(function):
        with _named(function, task_id):
            result = await function(**arguments)
    else:
        result = await asyncio.get_running_loop().run_in_executor(None, _call, function, task_id, arguments)
    seconds = time.perf_counter() - began
    # Set always, so that veRL's validation metrics exist with any reward function.
    ended = episode.stop_reason is StopReason.DESKTOP_ENDED
    values = (episode.success, float(episode.format_error), float(ended), float(unclear_losses))
    reward, extra_info = read_result(function, task_id, result, dict(zip(EXTRA, values, strict=True)))
    return Score(reward, extra_info, seconds)


def _call(function: Callable[..., Any], task_id: str, arguments: Mapping[str, Any]) -> Any:
    with _named(function, task_id):  # in the thread: the loop would wait forever for one that raised StopIteration
        return function(**arguments)


@contextmanager
def _named(function: Callable[..., Any], task_id: str) -> Iterator[None]:
    """Report the function's error as the recipe's. veRL would count one lost session and then lose the next one too."""
    try:
        yield
    except (ConfigError, GenerationError):
        raise
    except Exception as error:
        raise ConfigError(
            f"the reward function {name_of(function)} raised {error!r:.500} for task {task_id}; correct it, or raise "
            "arpo_verl.EndpointError if its server fails: then only this episode is dropped"
        ) from error


def _outcome(episode: Episode, partial_credit: float) -> dict[str, Any]:
    return {
        "success": episode.success,
        "credit": max(episode.success, partial_credit * (episode.share or 0.0)),
        "format_error": float(episode.format_error),
        "stop_reason": episode.stop_reason.value,
        "num_turns": len(episode.turns),
    }


def read_result(
    function: Callable[..., Any], task_id: str, result: Any, recorded: Mapping[str, float]
) -> tuple[float, dict[str, Any]]:
    """Return the reward, and what veRL averages beside it: `recorded`, and the function's other values.

    Args:
        function, task_id: what returned `result`, and the episode's task, for the message.
        recorded: values that the agent loop itself records. The function may repeat them but not change them.

    Raises:
        ConfigError: values cannot be used, or names are taken. The message lists all of them.
    """
    values = dict(result) if isinstance(result, Mapping) else {"score": result}
    given = values.pop("score", None)
    reward = finite_number(given)
    problems = (
        [] if reward is not None else [f"the reward (`score` of a dict) must be a finite number, got {given!r:.200}"]
    )
    extra: dict[str, Any] = dict(recorded)
    for name, value in values.items():
        number = finite_number(value)
        if name in recorded:
            if number is None or not math.isclose(number, recorded[name], rel_tol=1e-6, abs_tol=1e-6):
                problems.append(f"the agent loop sets `{name}` itself, to {recorded[name]!r} here, got {value!r:.200}")
        elif name in RESERVED or not isinstance(name, str):
            problems.append(f"you cannot use the name `{name}`: {RESERVED.get(name, 'it must be text')}")
        elif number is None and not isinstance(value, str | None):
            problems.append(f"`{name}` must be a finite number, text or None, got {value!r:.200}")
        else:
            extra[name] = value if number is None else number
    if reward is None or problems:
        what = f"the reward function {name_of(function)} returned values for task {task_id} that training cannot use:"
        raise ConfigError("\n- ".join([what, *problems]))
    return reward, extra


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, for a message."""
    return str(getattr(function, "__name__", function))
