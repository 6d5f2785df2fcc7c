"""Check what a reward function returned, before we train on it or average it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from arpo_verl.errors import ConfigError
from arpo_verl.types import finite_number

_COLUMN = "veRL's validation_data_dir has a column of this name"
RESERVED: Mapping[str, str] = {
    "reward": "veRL keeps the rewards themselves under this name and would average yours with them",
    "acc": "veRL would use it for validation instead of the reward, and count episodes lost to infrastructure as 0",
    **dict.fromkeys(("input", "output", "gts", "step", "uid"), _COLUMN),
}
"""Names that a reward function must not return, and why. veRL 0.9.1: `trainer/ppo/v1/trainer_base.py` (`_validate`,
`_write_generations`, `_val_metrics_update`) and `trainer/ppo/metric_utils.py: process_validation_metrics`."""


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
    unusable = (
        [] if reward is not None else [f"the reward (`score` of a dict) must be a finite number, got {_short(given)}"]
    )
    taken = []
    extra: dict[str, Any] = dict(recorded)
    for name, value in values.items():
        number = finite_number(value)
        if name in recorded:
            if number is None or not math.isclose(number, recorded[name], rel_tol=1e-6, abs_tol=1e-6):
                taken.append(f"the agent loop sets `{name}` itself, to {recorded[name]!r} here, got {_short(value)}")
        elif name in RESERVED or not isinstance(name, str):
            taken.append(f"you cannot use the name `{name}`")
        elif number is None and not isinstance(value, str | None):
            unusable.append(f"`{name}` must be a finite number, text or None, got {_short(value)}")
        else:
            extra[name] = value if number is None else number
    if reward is None or unusable or taken:
        what = f"the reward function {name_of(function)} returned values for task {task_id} that training cannot use:"
        raise ConfigError("\n- ".join([what, *unusable, *taken]) + (_taken_names(recorded) if taken else ""))
    return reward, extra


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, for a message."""
    return str(getattr(function, "__name__", function))


def _taken_names(recorded: Mapping[str, float]) -> str:
    why = {**RESERVED, **dict.fromkeys(recorded, "the agent loop records it, for replay and validation")}
    lines = (
        f"\n- {', '.join(name for name in why if why[name] == reason)}: {reason}"
        for reason in dict.fromkeys(why.values())
    )
    return "\nChoose other names than these:" + "".join(lines)


def _short(value: Any) -> str:
    return f"{value!r:.200}"
