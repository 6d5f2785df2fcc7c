"""Form whole mini-batches, whatever sessions were dropped and however many rows an episode has.

veRL fills up with rows of text only (`trainer/ppo/padding_utils.py`, `construct_minimal_padding_template`, 0.9.1). But
its forward pass of Qwen2-VL (`models/transformers/qwen2_vl.py`, `_get_input_embeds`) fails on a batch without an image
under transformers 5. veRL adds no rows if the sampler's batch already has the right size.
"""

from __future__ import annotations

import logging
import math
import uuid
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from arpo_verl.plugin import queue
from arpo_verl.plugin.queue import Batch
from arpo_verl.plugin.trainer_state import BatchShape
from arpo_verl.replay.groups import episode_of

logger = logging.getLogger(__name__)

IS_PADDING = "is_padding"
"""veRL's mark in the tag of a padding row: its metrics ignore the row."""
# Fields that would make a row count in a loss or in a group's statistics.
_ZEROED_FIELDS = ("response_mask", "loss_mask", "rm_scores")


class MiniBatches:
    """Keeps the number of updates of a batch as the recipe says, however many rows its episodes have.

    veRL counts a mini-batch in rows, `ppo_mini_batch_size` x `n`, and reads this number from its configuration each
    time (0.9.1, `trainer/ppo/v1/trainer_base.py`: `_get_required_batch_multiple`, `_update_actor`). Episodes of 46 rows
    would make 46 times as many updates as the recipe asks for. There is no plugin point, so we set the number in that
    configuration for each batch.

    Args:
        recipe: veRL's own whole recipe.
        shape: the recipe's batch.
    """

    def __init__(self, recipe: DictConfig, shape: BatchShape) -> None:
        self._shape = shape
        self._actor = recipe.actor_rollout_ref.actor
        gpus, nodes = (recipe.trainer.get(name) or 1 for name in ("n_gpus_per_node", "nnodes"))
        # A multiple of the number of processes is also a multiple of any number of data parallel ones.
        unit = math.lcm(shape.n, gpus * nodes * _micro_batch(recipe))
        self._unit = unit if shape.rows % unit == 0 else shape.rows

    def form(self, batch: Batch, num_episodes: int) -> tuple[Batch, dict[str, float]]:
        """Set the size of a mini-batch, and fill the batch up to whole ones. Return it with its metrics.

        Args:
            num_episodes: those of the policy; successes beside its groups add rows to its mini-batches.
        """
        rows = self._shape.rows_of(num_episodes, len(batch), self._unit)
        updates = self._shape.updates(num_episodes)
        self._actor.ppo_mini_batch_size = rows // self._shape.n
        filled = fill_up(batch, updates * rows)
        return filled, {
            "batch/rows": len(batch),
            "batch/rows_per_episode": len(batch) / len({episode_of(key) for key in batch.keys}),
            "batch/padding_rows": len(filled) - len(batch),
            "batch/updates": updates,
        }


def _micro_batch(root: Any) -> int:
    """Return the rows that a process handles at once. It needs whole micro-batches, unless it counts tokens instead
    (`workers/engine/utils.py: prepare_micro_batches`)."""
    if OmegaConf.select(root, "actor_rollout_ref.actor.use_dynamic_bsz"):
        return 1
    names = ("actor.ppo_micro_batch_size", "rollout.log_prob_micro_batch_size", "ref.log_prob_micro_batch_size")
    return math.lcm(*(OmegaConf.select(root, f"actor_rollout_ref.{name}_per_gpu") or 1 for name in names))


def fill_up(batch: Batch, size: int) -> Batch:
    """Add copies of the batch's shortest row, which no loss, group or metric counts.

    A whole copy keeps all per-token fields consistent. The copies are spread evenly, since veRL cuts mini-batches in
    this order: at the end they would fill most of the last mini-batch, and its few real rows would get an update of
    their own.

    Returns:
        A batch of `size` rows; `batch` itself if it already has that size.
    """
    missing = size - len(batch)
    if not missing:
        return batch
    source = min(range(len(batch)), key=lambda row: batch.tags[row]["seq_len"])
    row = queue.read([batch.keys[source]], batch.partition_id)[0]
    fields = {name: row[name] for name in row.keys()}
    fields |= {name: torch.zeros_like(fields[name]) for name in _ZEROED_FIELDS}
    uid = f"pad{uuid.uuid4().hex}"  # belongs to no group
    keys = [f"{uid}_{session}_0" for session in range(missing)]
    tag = {**batch.tags[source], IS_PADDING: True}
    queue.write(keys, batch.partition_id, [{**fields, "uid": uid}] * missing, [tag] * missing)
    logger.info("%d of %d rows are padding, up to whole mini-batches", missing, len(batch) + missing)
    tags = {**dict(zip(batch.keys, batch.tags, strict=True)), **dict.fromkeys(keys, tag)}
    order = list(batch.keys)
    for number, key in enumerate(keys, 1):
        order.insert(number * size // missing - 1, key)
    return queue.rebatch(batch, order, tags)
