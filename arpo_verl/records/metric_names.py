"""What each metric of a training run means, with its unit. docs/reference/metrics.md and the viewer's labels use it.

A name in capitals within a metric's name stands for any text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from arpo_verl.records.jumps import MAX_EARLIER_SUCCESS, MIN_EARLIER
from arpo_verl.types import StopReason


class Meaning(NamedTuple):
    """Explains a metric to a reader."""

    unit: str
    text: str

    @property
    def label(self) -> str:
        """The first sentence, as a label in a chart or a table."""
        first = self.text.partition(". ")[0].removesuffix(".")
        return first[0].lower() + first[1:]


def labels(table: Mapping[str, Meaning], names: Iterable[str]) -> dict[str, str]:
    """Return the label of each of these metrics, in their order."""
    return {name: table[name].label for name in names}


_SHARE = "0 to 1"
_REASONS = ", ".join(f"`{reason}`" for reason in StopReason)

ROLLOUTS: Mapping[str, Meaning] = {
    "rollout/success_mean": Meaning(_SHARE, "Mean score that the evaluators gave."),
    "rollout/reward_mean": Meaning("reward", "Mean of what the reward function returned."),
    "rollout/format_error_mean": Meaning(_SHARE, "Share of rollouts that a malformed reply ended."),
    "rollout/turns_mean": Meaning("replies", "Mean number of replies in a rollout."),
    "rollout/informative_share": Meaning(
        _SHARE, "Share of groups that teach something: at least two of their rewards differ."
    ),
    "rollout/stop/REASON": Meaning(_SHARE, f"Share of rollouts that ended for this reason: {_REASONS}."),
    "rollout/tasks_jumped": Meaning(
        "tasks",
        f"Tasks that all rollouts of a group solved, although of {MIN_EARLIER} earlier rollouts or more at most "
        f"{MAX_EARLIER_SUCCESS:.0%} did. Look at one of them for a way around the task.",
    ),
}

REPLAY: Mapping[str, Meaning] = {
    "replay/groups_all_failed": Meaning(
        "groups",
        "Groups that failed: their scores have a mean below `replay.mean_threshold` and a standard deviation below "
        "`replay.std_threshold`.",
    ),
    "replay/groups_all_solved": Meaning("groups", "Groups in which every score reaches `replay.success_threshold`."),
    "replay/groups_mixed": Meaning("groups", "All other groups."),
    "replay/injected": Meaning("rollouts", "Stored successes that entered groups."),
    "replay/added": Meaning("rollouts", "Those of them that stand beside a group, and replace no rollout."),
    "replay/age_mean": Meaning("steps", "Mean age of the replays, in training steps."),
    "replay/missed": Meaning("groups", "Groups that failed and got no replay."),
    "replay/no_gain": Meaning(
        "groups", "Groups that a method wanted and whose task has successes, but none with a gain."
    ),
    "replay/informative_share": Meaning(
        _SHARE,
        "Share of groups that teach something with the replays: two of their rewards differ, or a replay has its own "
        "advantage.",
    ),
    "replay/stored": Meaning("successes", "Successes that entered the store."),
    "replay/stored_untrained": Meaning(
        "successes", "Those of them whose group veRL threw away: it was stale, filtered or lost a session."
    ),
    "replay/store_trajectories": Meaning("successes", "Successes in the store after the step."),
    "replay/store_tasks": Meaning("tasks", "Tasks with a success in the store after the step."),
    "replay/store_mib": Meaning("MiB", "Size of the store after the step, each screenshot counted once."),
    "replay/prefetched": Meaning(
        "replays", "Replays whose rows were already rebuilt while other groups still generated."
    ),
    "replay/unusable": Meaning(
        "successes", "Successes that left the store because this policy's rows cannot be rebuilt from them."
    ),
    "replay/changed_task": Meaning(
        "successes",
        "Successes that no group of their task got, since its instruction, set-up or evaluator changed.",
    ),
    "replay/without/NAME": Meaning(
        "that of NAME", "veRL's metric NAME over the rows that are no replays; the next table lists the names."
    ),
}

RATIOS: Mapping[str, Meaning] = {
    "replay/loss_share": Meaning(_SHARE, "The replays' share of the sum of the absolute advantages of all tokens."),
    "replay/token_weight_mean": Meaning(
        "factor", "Mean factor of replayed tokens' advantages, with a replay method that has one, such as `exgrpo`."
    ),
    "replay/ratio_mean": Meaning("ratio", "Mean of rho."),
    "replay/ratio_std": Meaning("ratio", "Standard deviation of rho."),
    "replay/ratio_max": Meaning("ratio", "Largest rho."),
    "replay/ratio_beyond_bound": Meaning(_SHARE, "Share of tokens whose rho is above 2 or below 1/2."),
}

WITHOUT_REPLAYS: Mapping[str, Meaning] = {
    "critic/score/mean": Meaning("reward", "Mean reward of a row."),
    "critic/rewards/mean": Meaning("reward", "The same after a KL penalty, if the recipe adds one to the reward."),
    "critic/advantages/mean": Meaning("advantage", "Mean advantage of a trained token."),
    "response_length/mean": Meaning("tokens", "Mean length of a row after its prompt, later screenshots included."),
    "response_length/clip_ratio": Meaning(_SHARE, "Share of rows whose response is as long as the batch's longest."),
    "prompt_length/mean": Meaning("tokens", "Mean length of a row's prompt."),
    "num_turns/mean": Meaning("messages", "Mean number of screenshots and replies in a row's episode."),
    "actor/entropy": Meaning("nats", "Mean entropy of the policy at a trained token."),
    "training/rollout_probs_diff_mean": Meaning(
        "probability",
        "Mean difference between the probabilities that the rollout engine and the trainer give a trained token.",
    ),
    "training/rollout_probs_diff_max": Meaning("probability", "Largest such difference."),
    "training/rollout_probs_diff_std": Meaning("probability", "Standard deviation of these differences."),
    "training/rollout_actor_probs_pearson_corr": Meaning("-1 to 1", "Correlation of these two probabilities."),
    "training/off_policy/trajectory_staleness/mean": Meaning(
        "weight updates", "Mean age of the policy that wrote the end of a row: 0 is the policy that is updated."
    ),
}

BATCH: Mapping[str, Meaning] = {
    "batch/rows": Meaning("rows", "Rows of the batch's episodes."),
    "batch/rows_per_episode": Meaning("rows", "Mean number of rows of an episode."),
    "batch/padding_rows": Meaning(
        "rows", "Rows without reward or trained tokens that fill it up to whole mini-batches."
    ),
    "batch/updates": Meaning("mini-batches", "Mini-batches that the batch is trained in."),
}

FRONTIER: Mapping[str, Meaning] = {
    "frontier/expected_informative": Meaning(_SHARE, "Share of the coming groups that should teach something."),
    "frontier/expected_uniform": Meaning(_SHARE, "The same if every task were drawn equally often."),
    "frontier/effective_tasks": Meaning(
        "tasks", "How many tasks, drawn equally often, would be as concentrated as the draws to come."
    ),
    "frontier/tasks_unseen": Meaning("tasks", "Tasks never drawn."),
    "frontier/tasks_failing": Meaning("tasks", "Drawn tasks with an estimated success rate below 0.1."),
    "frontier/tasks_solved": Meaning("tasks", "Drawn tasks with an estimated success rate above 0.9."),
}

DESKTOPS: Mapping[str, Meaning] = {
    "environment/desktops_busy": Meaning("desktops", "Desktops that a rollout leases."),
    "environment/desktops_idle": Meaning("desktops", "Desktops that wait for a rollout."),
    "environment/desktops_booting": Meaning("desktops", "Desktops that boot, are cleaned, or wait for their turn."),
    "environment/desktops_dead": Meaning("desktops", "Desktops that failed and are being thrown away."),
    "environment/desktops_unplaced": Meaning("desktops", "Desktops for which no node has room."),
    "environment/busy_share": Meaning(
        _SHARE, "Busy desktops as a share of `environment.num_desktops`. Near 1, more desktops would help."
    ),
    "environment/rollouts_waiting": Meaning("rollouts", "Rollouts that wait for a desktop."),
    "environment/lease_wait_s/mean": Meaning("seconds", "Wait for a desktop. Mean over the leases that began."),
    "environment/lease_wait_s/max": Meaning("seconds", "Longest wait for a desktop."),
    "environment/leases": Meaning("leases", "Leases that began."),
    "environment/leases_reclaimed": Meaning(
        "leases", "Desktops taken back, because their rollout did not use them for `environment.lease_idle_timeout_s`."
    ),
    "environment/boots": Meaning("calls", "Boots that succeeded."),
    "environment/boot_s/mean": Meaning("seconds", "Boot or clean a desktop (before it is leased). Mean of the boots."),
    "environment/resets": Meaning("calls", "Tasks set up."),
    "environment/reset_s/mean": Meaning("seconds", "Set the task up. Mean of the set-ups."),
    "environment/steps": Meaning("calls", "Actions done."),
    "environment/step_s/mean": Meaning("seconds", "One action and the look at it. Mean of the actions."),
    "environment/evaluations": Meaning("calls", "Verdicts given."),
    "environment/evaluate_s/mean": Meaning("seconds", "Evaluate. Mean of the verdicts."),
    "environment/dropped_sessions": Meaning("sessions", "Sessions dropped, for any reason. Nothing of them is scored."),
    "environment/ended_desktops": Meaning("desktops", "Desktops that the policy itself ended. The episode scores 0."),
    "environment/faults/boot": Meaning("faults", "Desktops that did not boot."),
    "environment/faults/setup": Meaning("faults", "Task set-ups that failed."),
    "environment/faults/lost": Meaning("faults", "Desktops lost during an episode."),
    "environment/faults/unclear": Meaning("faults", "Desktops lost during an episode, perhaps by the policy's doing."),
    "environment/faults/evaluator": Meaning("faults", "Evaluators that failed."),
    "environment/faults/host": Meaning("faults", "Desktops lost with their node."),
    "environment/faults/idle": Meaning("faults", "Desktops found dead while idle."),
    "environment/loop_restarts": Meaning("restarts", "Restarts of the pool's own loops after an error."),
    "environment/nodes": Meaning("nodes", "Nodes with desktops, at the end of the step."),
    "environment/hosts_dropped": Meaning(
        "nodes", "Nodes dropped at the end of the step: boots or set-ups failed there one after the other."
    ),
}

TIMES: Mapping[str, Meaning] = {
    "timing_s/step": Meaning("seconds", "A training step, without its validation."),
    "timing_s/gen": Meaning(
        "seconds", "Rollouts: desktops and generation. As far as the trainer waited for them, replay included."
    ),
    "timing_s/replay": Meaning("seconds", "Replay, between the last rollout and the batch: a part of `timing_s/gen`."),
    "timing_s/replay_ahead": Meaning("seconds", "Rebuilding of replays while other groups still generated."),
    "timing_s/old_log_prob": Meaning("seconds", "Old log-probs. The trainer scores each token before the update."),
    "timing_s/ref": Meaning("seconds", "Reference log-probs. Only in a recipe with a KL term."),
    "timing_s/adv": Meaning("seconds", "Advantages."),
    "timing_s/update_critic": Meaning("seconds", "Critic's update. Only in a recipe with a critic."),
    "timing_s/update_actor": Meaning("seconds", "Actor's update. The actor is the policy."),
    "timing_s/update_weights": Meaning("seconds", "Weights to the rollout engine."),
    "timing_s/save_checkpoint": Meaning("seconds", "Checkpoint."),
    "timing_s/testing": Meaning("seconds", "Validation, beside the steps."),
}

VALIDATION: Mapping[str, Meaning] = {
    "val-core/arpo_verl/reward/mean@N": Meaning("reward", "Mean reward."),
    "val-aux/arpo_verl/success/mean@N": Meaning(_SHARE, "Mean score that the evaluators gave."),
    "val-aux/arpo_verl/format_error/mean@N": Meaning(_SHARE, "Share of episodes that a malformed reply ended."),
    "val-aux/arpo_verl/desktop_ended/mean@N": Meaning(
        _SHARE, "Share of episodes in which the policy ended its desktop."
    ),
    "val-aux/arpo_verl/unclear_losses/mean@N": Meaning(
        "attempts", "Mean number of attempts before an episode that were lost, perhaps by the policy's doing."
    ),
    "val-aux/num_turns/mean": Meaning("messages", "Mean number of screenshots and replies in an episode."),
}

EASYR1: Mapping[str, Meaning] = {
    "rollout/dropped": Meaning("rollouts", "Rollouts that infrastructure failed. Nothing of them is scored."),
    "rollout/engine_calls": Meaning("calls", "Calls of the rollout engine, each with the prompts of many episodes."),
    "val/reward_score": Meaning("reward", "Mean reward of the validation."),
    "val/success_mean": Meaning(_SHARE, "Mean score that the evaluators gave in the validation."),
    "val/dropped": Meaning("episodes", "Validation episodes that infrastructure failed."),
}

TABLES = (ROLLOUTS, REPLAY, RATIOS, WITHOUT_REPLAYS, BATCH, FRONTIER, DESKTOPS, TIMES, VALIDATION, EASYR1)
