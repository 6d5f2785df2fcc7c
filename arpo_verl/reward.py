"""Compute the reward r = r_t + w * r_f from what the agent loop recorded.

r_t is the score of the task's own OSWorld evaluator, from 0 to 1. In training, `environment.partial_credit` may replace
it by the weighted share of its checks that were met. r_f is -1 if the episode ended with a reply that is not in the
action grammar, else 0. An episode lost to an environment fault has no reward at all.

Source: ARPO (arXiv 2505.16282), section on the reward: w = 1. Its published code uses w = 0.5, and also gives r_f = -1
for any exception while an action runs. We give it only for the model's own malformed text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arpo_verl.errors import ConfigError
from arpo_verl.types import finite_number

PAPER_FORMAT_WEIGHT = 1.0


def compute_score(
    data_source: str | None,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None,
    format_weight: float = PAPER_FORMAT_WEIGHT,
    **_: Any,
) -> dict[str, float]:
    """Compute veRL's reward; `reward_kwargs: {format_weight: 0.5}` gives the reference's weight.

    Args:
        data_source, solution_str, ground_truth: veRL's; not used, since the desktop was evaluated, not the text.
        extra_info: `success` from 0 to 1 and `format_error` (0 or 1), as the agent loop `gui_agent` records them. Also
            `credit`, the task's part of the reward, if that is more than the score.
        format_weight: w, not negative.

    Returns:
        `score` (the reward), and `success` and `format_error`, which veRL logs.

    Raises:
        ConfigError: another agent loop ran, which records no score; or the weight is not a number of 0 or more.
    """
    missing = [name for name in ("success", "format_error") if name not in (extra_info or {})]
    if extra_info is None or missing:
        raise ConfigError(
            f"arpo_verl.reward needs {' and '.join(missing)} in extra_info; "
            "set actor_rollout_ref.rollout.agent.default_agent_loop=gui_agent"
        )
    weight = finite_number(format_weight)
    if weight is None or weight < 0:
        raise ConfigError(f"reward_kwargs.format_weight must be a finite number, not negative, got {format_weight!r}")
    success, format_error = float(extra_info["success"]), float(extra_info["format_error"])
    credit = float(extra_info.get("credit", success))
    return {"score": credit - weight * format_error, "success": success, "format_error": format_error}
