"""What a step's groups and the store of successes come to, as numbers to log. Pure.

`rollout/*` and `replay/groups_*` show what the policy did: they count the rollouts before any was replaced, while
veRL's own `critic/score/*` and `critic/rewards/*` show what the update saw: the batch after the replacements.
No name of a mean holds `sum`, `max` or `min`, by which veRL decides what becomes of several batches of a step.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from arpo_verl.replay.choice import MIN_GROUP_SIZE, Group, Replacement
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.types import StopReason

_MIB = 1024**2

COUNTS = (
    *("replay/groups_all_failed", "replay/groups_all_solved", "replay/groups_mixed", "replay/injected"),
    *("replay/missed", "replay/stored", "replay/stored_untrained", "replay/prefetched", "replay/unusable"),
    *("rollout/tasks_jumped", "batch/rows", "batch/padding_rows", "batch/updates"),
)
"""Of a batch; of a step they are sums."""
LEVELS = ("replay/store_trajectories", "replay/store_tasks", "replay/store_mib")
"""As they are after a batch; of a step, after its last one."""


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the rollouts as they ended, and the share of each stop reason (all named, so that curves join).

    Nothing where there are none.
    """
    if not groups:
        return {}
    outcomes = [outcome for group in groups for outcome in group.outcomes]
    reasons = Counter({reason.value: 0 for reason in StopReason})
    reasons.update(outcome.stop_reason for outcome in outcomes)
    return {
        "rollout/success_mean": statistics.fmean(outcome.success for outcome in outcomes),
        "rollout/reward_mean": statistics.fmean(outcome.reward for outcome in outcomes),
        "rollout/format_error_mean": statistics.fmean(outcome.format_error for outcome in outcomes),
        "rollout/turns_mean": statistics.fmean(outcome.num_turns for outcome in outcomes),
        "rollout/informative_share": statistics.fmean(is_informative(group, {}) for group in groups),
        **{f"rollout/stop/{reason}": count / len(outcomes) for reason, count in reasons.items()},
    }


def group_metrics(
    groups: Sequence[Group], replacements: Sequence[Replacement], config: ReplayConfig
) -> dict[str, float]:
    """How the groups came out, and what share of them teaches anything once the replacements are in."""
    failed = sum(group.all_failed(config) for group in groups)
    solved = sum(group.all_solved(config) for group in groups)
    replayed_rewards = {replacement.outcome.key: replacement.candidate.reward for replacement in replacements}
    return {
        "replay/groups_all_failed": failed,
        "replay/groups_all_solved": solved,
        "replay/groups_mixed": len(groups) - failed - solved,
        "replay/injected": len(replacements),
        "replay/missed": max(0, failed - len(replacements)),
        "replay/informative_share": statistics.fmean(is_informative(group, replayed_rewards) for group in groups),
    }


def store_metrics(store: SuccessStore, num_stored: int, num_untrained: int = 0) -> dict[str, float]:
    """The store's size after the step, and how many successes entered in it.

    Args:
        num_stored: all that entered.
        num_untrained: how many of them were of groups that are not trained on.
    """
    return {
        "replay/stored": num_stored,
        "replay/stored_untrained": num_untrained,
        "replay/store_trajectories": len(store),
        "replay/store_tasks": store.num_tasks,
        "replay/store_mib": store.num_bytes / _MIB,
    }


def is_informative(group: Group, replayed_rewards: dict[str, float]) -> bool:
    """Whether any advantage differs from zero: whether two members have different rewards."""
    rewards = {replayed_rewards.get(outcome.key, outcome.reward) for outcome in group.outcomes}
    return len(group.outcomes) >= MIN_GROUP_SIZE and len(rewards) > 1
