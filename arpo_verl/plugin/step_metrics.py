"""Compute a step's metrics that veRL does not have: counts over several batches, and metrics without replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.utils.debug.metrics import calculate_debug_metrics

from arpo_verl.plugin import queue
from arpo_verl.replay.distance import ratio, ratio_metrics
from arpo_verl.replay.labels import REPLAYED, RowLabel
from arpo_verl.replay.methods.base import ReplayMethod

_OF_TOKENS = ["response_mask", "entropy", "old_log_probs", "rollout_log_probs", "rm_scores"]

_WITHOUT = [f"critic/{name}/mean" for name in ("score", "rewards", "advantages")]
_WITHOUT += [f"{name}/mean" for name in ("response_length", "prompt_length", "num_turns")]
_WITHOUT += ["response_length/clip_ratio", "actor/entropy", "training/rollout_actor_probs_pearson_corr"]
_WITHOUT += [f"training/rollout_probs_diff_{name}" for name in ("mean", "max", "std")]
_RATIOS = ["loss_share", "token_weight_mean", "ratio_mean", "ratio_std", "ratio_max", "ratio_beyond_bound"]

SCORED_METRICS = [f"replay/without/{name}" for name in _WITHOUT] + [f"replay/{name}" for name in _RATIOS]
"""Names of the metrics of `ScoredBatch`: `replay/without/X` is the trainer's own metric X of the same step, over the
rows that the policy of this step wrote."""


class StepMetrics:
    """Sums the counts of a training step that has several batches.

    veRL's `separate_async` updates `parameter_sync_step` times a step and logs the mean of each metric over the
    batches, except for names with `sum`, `max` or `min` (`trainer/ppo/v1/utils.py: MetricsAggregator`). A mean of
    counts is not a count. So we hold counts back and report their sum with the step's last batch, where veRL's mean of
    one value is that value.

    Args:
        num_batches: batches of a step.
        counts: names to sum.
        levels: names whose last value counts.
    """

    def __init__(self, num_batches: int, counts: Collection[str], levels: Collection[str]):
        self._num_batches = num_batches
        self._counts, self._levels = frozenset(counts), frozenset(levels)
        self._sums: Counter[str] = Counter()

    def is_last(self, batch: int) -> bool:
        """Return whether the step ends with this batch, counted from 0."""
        return batch == self._num_batches - 1

    def of_batch(self, batch: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return what to log with this batch, so that veRL logs the right value for the step."""
        if batch == 0:
            self._sums.clear()
        self._sums.update({name: value for name, value in metrics.items() if name in self._counts})
        if self.is_last(batch):
            return {**metrics, **self._sums}
        return {name: value for name, value in metrics.items() if name not in self._counts | self._levels}


@dataclass(frozen=True)
class ScoredBatch:
    """The labelled rows of a batch between scoring and update, in the estimator's order and width."""

    rows: Sequence[int]
    """Their positions in the estimator's tensors."""
    labels: Sequence[RowLabel]
    columns: dict[str, torch.Tensor]
    """Values of these rows: (L, T) log-probs, entropy, scores and the rollout's mask, (L,) lengths and turns."""

    @classmethod
    def read(cls, labels: Mapping[int, RowLabel], width: int, partition_id: str = queue.TRAINING) -> ScoredBatch:
        """Fetch the labelled rows' scores from TransferQueue.

        Args:
            labels: the rows' labels, by position in the estimator's tensors.
            width: T, the width to which veRL padded the batch.
        """
        keys = [label.key for label in labels.values()]
        data = queue.read(keys, partition_id, ["prompts", "responses", "num_turns", *_OF_TOKENS])
        columns = {
            "prompt_length": data["prompts"].offsets().diff().float(),
            "response_length": data["responses"].offsets().diff().float(),
            "num_turns": torch.tensor(data.pop("num_turns").tolist()),
        }
        for name in _OF_TOKENS:
            if name in data.keys():
                columns[name] = data[name].to_padded_tensor(0.0, output_size=(len(keys), width))
        return cls(tuple(labels), tuple(labels.values()), columns)

    def old_log_probs(self) -> dict[str, list[float]]:
        """Return each row's log-probs of the policy before the update, by its key, for the tokens that a policy wrote.
        veRL's ratio starts from them. Empty if veRL uses the rollout engine's instead."""
        if not {"old_log_probs", "response_mask"} <= self.columns.keys():
            return {}
        values_LT, mask_LT = self.columns["old_log_probs"], self.columns["response_mask"].bool()
        return {label.key: values_LT[i][mask_LT[i]].tolist() for i, label in enumerate(self.labels)}

    @cached_property
    def log_ratios(self) -> dict[int, torch.Tensor]:
        """Return log rho of the tokens of each replay whose log-probs somebody recorded, (T,), by the row's position;
        see `ratio_metrics`."""
        if not {"old_log_probs", "rollout_log_probs"} <= self.columns.keys():
            return {}
        log_ratio_LT = self.columns["old_log_probs"] - self.columns["rollout_log_probs"]
        recorded = [i for i, label in enumerate(self.labels) if label.is_replay and label.has_log_probs]
        return {self.rows[i]: log_ratio_LT[i] for i in recorded}

    def token_weights(self, method: ReplayMethod) -> dict[int, torch.Tensor]:
        """Return the factors of replayed tokens' advantages, (T,), by the row's position; those of 1 are
        left out."""
        weights = {row: method.token_weight(ratio(log_T)) for row, log_T in self.log_ratios.items()}
        return {row: weight_T for row, weight_T in weights.items() if weight_T is not None}

    def metrics_of_replays(
        self, advantages_BT: torch.Tensor, response_mask: torch.Tensor, weights: Mapping[int, torch.Tensor]
    ) -> dict[str, float]:
        """Return the replays' share of the loss, how far they are from the policy, and the mean of their weights.

        Args:
            weights: from `token_weights`.
        """
        mask = response_mask.bool()
        replays = [row for row, label in zip(self.rows, self.labels, strict=True) if label.is_replay]
        size_B = (advantages_BT.abs() * response_mask).sum(dim=-1)
        metrics = (
            {"replay/loss_share": (size_B[replays].sum() / size_B.sum()).item()} if replays and size_B.any() else {}
        )
        recorded = [log_T[mask[row]] for row, log_T in self.log_ratios.items()]
        ratios = torch.cat(recorded) if recorded else torch.empty(0)
        if len(ratios):  # or veRL's correction rejected every token of every replay
            metrics |= {f"replay/{name}": value for name, value in ratio_metrics(ratios).items()}
        if weights:
            used = torch.cat([weight_T[mask[row]] for row, weight_T in weights.items()])
            metrics |= {"replay/token_weight_mean": used.mean().item()} if len(used) else {}
        return metrics

    def metrics_without_replays(
        self, rewards_BT: torch.Tensor, advantages_BT: torch.Tensor, response_mask: torch.Tensor, actor: DictConfig
    ) -> dict[str, float]:
        """Return the trainer's metrics of the rows that are no replays, with veRL's functions; see `SCORED_METRICS`.

        Args:
            response_mask: without the tokens that veRL's correction rejected, as in its metrics after the update.
            actor: the recipe's section.
        """
        own = [i for i, label in enumerate(self.labels) if not label.is_replay]
        if not own:
            return {}
        rows = [self.rows[i] for i in own]
        mask = response_mask[rows]
        scored = {name: column[own] for name, column in self.columns.items() if name != "num_turns"}
        # veRL uses only the widths of these two.
        scored |= {"responses": mask, "prompts": mask.new_zeros(len(own), int(scored["prompt_length"].max()))}
        updated = {"response_mask": mask, "advantages": advantages_BT[rows], "returns": advantages_BT[rows]}
        updated |= {"token_level_scores": scored["rm_scores"], "token_level_rewards": rewards_BT[rows]}
        turns = np.asarray(self.columns["num_turns"][own], dtype=np.int32)
        data = DataProto.from_dict(tensors=scored | updated, non_tensors={"__num_turns__": turns})
        metrics = compute_data_metrics(data, use_critic=False)
        if "entropy" in scored:
            mode, scale = actor.loss_agg_mode, actor.loss_scale_factor
            entropy = agg_loss(scored["entropy"], scored["response_mask"], mode, loss_scale_factor=scale)
            metrics["actor/entropy"] = entropy.item()
        if "rollout_log_probs" in scored:
            metrics |= calculate_debug_metrics(DataProto.from_dict(tensors=scored))
        return {f"replay/without/{name}": metrics[name] for name in _WITHOUT if name in metrics}


def staleness_without(tags: Sequence[Mapping[str, Any]], step: int) -> dict[str, float]:
    """Return veRL's `training/off_policy/trajectory_staleness/mean` over the rows that are no replays.

    Args:
        tags: the tags of the batch's rows, with replays marked.
        step: the training step; the policy before its update has version `step - 1`.
    """
    versions = [tag["max_global_steps"] for tag in tags if not tag.get(REPLAYED) and "max_global_steps" in tag]
    if not versions:
        return {}
    name = "replay/without/training/off_policy/trajectory_staleness/mean"
    return {name: fmean(step - 1 - version for version in versions)}
