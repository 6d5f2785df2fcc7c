"""Count a step's groups and the store of successes, as numbers to log. Pure.

`rollout/*` and `replay/groups_*` show what the policy did: they count the rollouts before any was replaced. veRL's own
`critic/score/*` and `critic/rewards/*` show what the update saw: the batch with its replays.
No name of a mean contains `sum`, `max` or `min`: by these veRL decides how to combine several batches of a step.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import MIN_GROUP_SIZE, Group
from arpo_verl.replay.methods.base import Replay
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.types import StopReason

_MIB = 1024**2

COUNTS = (
    *("replay/groups_all_failed", "replay/groups_all_solved", "replay/groups_mixed", "replay/injected", "replay/added"),
    *("replay/missed", "replay/stored", "replay/stored_untrained", "replay/prefetched", "replay/unusable"),
    *("replay/no_gain", "replay/changed_task", "rollout/tasks_jumped"),
    *("batch/rows", "batch/padding_rows", "batch/updates"),
)
"""Counts in a batch; a step reports their sums."""
LEVELS = (
    *("replay/store_trajectories", "replay/store_tasks", "replay/store_mib"),
    *(f"rollout/{name}" for name in ("success_mean", "reward_mean", "format_error_mean", "turns_mean")),
    *("rollout/informative_share", *(f"rollout/stop/{reason.value}" for reason in StopReason)),
)
"""Values after a batch, of the step so far; a step reports those after its last batch."""


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return means over the rollouts before any replay, and the share of every stop reason, so that curves are whole.

    Without rollouts, return nothing.
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
        "rollout/informative_share": statistics.fmean(is_informative(group) for group in groups),
        **{f"rollout/stop/{reason}": count / len(outcomes) for reason, count in reasons.items()},
    }


def group_metrics(
    groups: Sequence[Group], replays: Sequence[Replay], config: ReplayConfig, step: int
) -> dict[str, float]:
    """Count groups by result, and compute the share that teaches anything with the replays."""
    failed = sum(group.all_failed(config) for group in groups)
    solved = sum(group.all_solved(config) for group in groups)
    by_uid: dict[str, list[Replay]] = {}
    for replay in replays:
        by_uid.setdefault(replay.outcome.uid, []).append(replay)
    ages = [step - replay.candidate.step for replay in replays]
    return {
        "replay/groups_all_failed": failed,
        "replay/groups_all_solved": solved,
        "replay/groups_mixed": len(groups) - failed - solved,
        "replay/injected": len(replays),
        "replay/added": sum(replay.added is not None for replay in replays),
        "replay/missed": sum(group.all_failed(config) and group.uid not in by_uid for group in groups),
        "replay/informative_share": statistics.fmean(
            is_informative(group, by_uid.get(group.uid, ())) for group in groups
        ),
        **({"replay/age_mean": statistics.fmean(ages)} if ages else {}),
    }


def store_metrics(store: SuccessStore, num_stored: int, num_untrained: int = 0) -> dict[str, float]:
    """Return the store's size after the step, and how many successes entered in it.

    Args:
        num_stored: successes that entered.
        num_untrained: how many of them came from groups that are not trained on.
    """
    return {
        "replay/stored": num_stored,
        "replay/stored_untrained": num_untrained,
        "replay/store_trajectories": len(store),
        "replay/store_tasks": store.num_tasks,
        "replay/store_mib": store.num_bytes / _MIB,
    }


def is_informative(group: Group, replays: Sequence[Replay] = ()) -> bool:
    """Return whether any advantage differs from 0: two members have different rewards, or a replay has its own."""
    if any(replay.advantage for replay in replays):
        return True
    replaced = {replay.outcome.key for replay in replays if replay.added is None}
    rewards = {outcome.reward for outcome in group.outcomes if outcome.key not in replaced}
    rewards |= {replay.candidate.reward for replay in replays if replay.advantage is None}
    return len(group.outcomes) >= MIN_GROUP_SIZE and len(rewards) > 1
