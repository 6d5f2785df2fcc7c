"""Metrics of a training step that veRL's own do not give: counts over several batches, and replays counted apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from verl.protocol import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.utils.debug.metrics import calculate_debug_metrics

from arpo_verl.plugin import queue
from arpo_verl.replay.distance import ratio_metrics
from arpo_verl.replay.labels import REPLAYED, RowLabel

_FIELDS = ["prompts", "responses", "response_mask", "num_turns", "entropy", "old_log_probs", "rollout_log_probs"]

_WITHOUT = [f"critic/{name}/mean" for name in ("score", "rewards", "advantages")]
_WITHOUT += [f"{name}/mean" for name in ("response_length", "prompt_length", "num_turns")]
_WITHOUT += ["response_length/clip_ratio", "actor/entropy", "training/rollout_actor_probs_pearson_corr"]
_WITHOUT += [f"training/rollout_probs_diff_{name}" for name in ("mean", "max", "std")]
_RATIOS = ["ratio_mean", "ratio_std", "ratio_max", "ratio_beyond_bound"]

SCORED_METRICS = [f"replay/without/{name}" for name in _WITHOUT] + [f"replay/{name}" for name in _RATIOS]
"""What `ScoredBatch.metrics` gives: `replay/without/X` is the trainer's own metric X of the same step, over the rows
that the policy of this step wrote."""


class StepMetrics:
    """Counts of a training step that is made of several batches.

    veRL's `separate_async` updates `parameter_sync_step` times a step, and logs of each metric the mean over its
    batches, but for names that hold `sum`, `max` or `min` (`trainer/ppo/v1/utils.py: MetricsAggregator`). The mean of a
    count is none. So counts are held back, and the step's last batch has their sum: veRL's mean of one value is that
    value.

    Args:
        num_batches: of a step.
        counts: names to be summed.
        levels: names of which the last value counts.
    """

    def __init__(self, num_batches: int, counts: Collection[str], levels: Collection[str]):
        self._num_batches = num_batches
        self._counts, self._levels = frozenset(counts), frozenset(levels)
        self._sums: Counter[str] = Counter()

    def is_last(self, batch: int) -> bool:
        """Whether the step ends with this batch, counted from 0."""
        return batch == self._num_batches - 1

    def of_batch(self, batch: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What veRL gets with this batch, so that what it logs is right for the step."""
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
    """Positions in the estimator's tensors."""
    labels: Sequence[RowLabel]
    columns: dict[str, torch.Tensor]
    """Of these rows: (L, T) log-probs, entropy and the mask as the rollout wrote it, (L,) lengths and turns."""

    @classmethod
    def read(cls, labels: Mapping[int, RowLabel], width: int, partition_id: str = queue.TRAINING) -> ScoredBatch:
        """Fetch the labelled rows' scores from TransferQueue.

        Args:
            labels: by position in the estimator's tensors.
            width: T, to which veRL padded the batch.
        """
        keys = [label.key for label in labels.values()]
        data = queue.read(keys, partition_id, _FIELDS)
        columns = {
            "prompt_length": data["prompts"].offsets().diff().float(),
            "response_length": data["responses"].offsets().diff().float(),
            "num_turns": torch.tensor(data.pop("num_turns").tolist()),
        }
        for name in ("old_log_probs", "rollout_log_probs", "entropy", "response_mask"):
            if name in data.keys():
                columns[name] = data[name].to_padded_tensor(0.0, output_size=(len(keys), width))
        return cls(tuple(labels), tuple(labels.values()), columns)

    def old_log_probs(self) -> dict[str, list[float]]:
        """Of each row, by its key, the log-probs of the policy that is about to be updated, of the tokens that a policy
        wrote: the ones that veRL's ratio starts from. None where veRL takes the rollout engine's."""
        if not {"old_log_probs", "response_mask"} <= self.columns.keys():
            return {}
        values_LT, mask_LT = self.columns["old_log_probs"], self.columns["response_mask"].bool()
        return {label.key: values_LT[i][mask_LT[i]].tolist() for i, label in enumerate(self.labels)}

    def metrics_of_replays(self, response_mask: torch.Tensor) -> dict[str, float]:
        """How far the replays are from the policy; nothing where nobody recorded the log-probs of their makers."""
        replays = [i for i, label in enumerate(self.labels) if label.is_replay and label.has_log_probs]
        if not replays or not {"old_log_probs", "rollout_log_probs"} <= self.columns.keys():
            return {}
        written = response_mask[[self.rows[i] for i in replays]].bool()
        if not written.any():  # veRL's own correction rejected every token of every replay
            return {}
        log_ratio_RT = self.columns["old_log_probs"][replays] - self.columns["rollout_log_probs"][replays]
        return {f"replay/{name}": value for name, value in ratio_metrics(log_ratio_RT[written]).items()}

    def metrics_without_replays(
        self, rewards_BT: torch.Tensor, advantages_BT: torch.Tensor, response_mask: torch.Tensor
    ) -> dict[str, float]:
        """The trainer's metrics of the rows that are no replays, by veRL's own functions; see `SCORED_METRICS`."""
        own = [i for i, label in enumerate(self.labels) if not label.is_replay]
        if not own:
            return {}
        rows = [self.rows[i] for i in own]
        mask = response_mask[rows]
        batch = {name: column[own] for name, column in self.columns.items() if name != "num_turns"}
        batch |= {"response_mask": mask, "advantages": advantages_BT[rows], "returns": advantages_BT[rows]}
        batch |= {"token_level_scores": rewards_BT[rows], "token_level_rewards": rewards_BT[rows]}
        # veRL asks these two for their widths alone.
        batch |= {"responses": mask, "prompts": mask.new_zeros(len(own), int(batch["prompt_length"].max()))}
        turns = np.asarray(self.columns["num_turns"][own], dtype=np.int32)
        data = DataProto.from_dict(tensors=batch, non_tensors={"__num_turns__": turns})
        metrics = compute_data_metrics(data, use_critic=False)
        if "entropy" in batch:
            metrics["actor/entropy"] = batch["entropy"][mask.bool()].mean().item()
        if "rollout_log_probs" in batch:
            metrics |= calculate_debug_metrics(data)
        return {f"replay/without/{name}": metrics[name] for name in _WITHOUT if name in metrics}


def staleness_without(tags: Sequence[Mapping[str, Any]], step: int) -> dict[str, float]:
    """veRL's `training/off_policy/trajectory_staleness/mean` over the rows that are no replays.

    Args:
        tags: of the batch's rows, replays marked.
        step: the training step; the policy that is being updated is one version behind it.
    """
    versions = [tag["max_global_steps"] for tag in tags if not tag.get(REPLAYED) and "max_global_steps" in tag]
    if not versions:
        return {}
    name = "replay/without/training/off_policy/trajectory_staleness/mean"
    return {name: fmean(step - 1 - version for version in versions)}
