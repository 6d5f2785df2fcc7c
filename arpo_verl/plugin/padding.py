"""Rows that fill a batch up to whole mini-batches where sessions were dropped.

veRL fills up with rows of text alone (`trainer/ppo/padding_utils.py`, `construct_minimal_padding_template`, 0.9.1), and
its own forward pass of Qwen2-VL (`models/transformers/qwen2_vl.py`, `_get_input_embeds`) fails on a batch without an
image under transformers 5. It adds none where the sampler's batch divides already.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Annotated

import torch

from arpo_verl.config import check_fields, whole
from arpo_verl.plugin import queue
from arpo_verl.plugin.queue import Batch

logger = logging.getLogger(__name__)

IS_PADDING = "is_padding"
"""veRL's mark in a padding row's tag: its metrics leave the row out."""
# What would make a row count in a loss or in a group's statistics.
_ZEROED_FIELDS = ("response_mask", "loss_mask", "rm_scores")


@dataclass(frozen=True)
class BatchShape:
    """The recipe's `trainer.v1.sampler.sampler_kwargs.batch`: what `PPOTrainer._get_required_batch_multiple` reads."""

    ppo_mini_batch_size: Annotated[int, whole(1)]
    """Prompts, `${actor_rollout_ref.actor.ppo_mini_batch_size}`."""
    n: Annotated[int, whole(1)]
    """Sessions a prompt, `${actor_rollout_ref.rollout.n}`."""

    def __post_init__(self) -> None:
        check_fields(self, "trainer.v1.sampler.sampler_kwargs.batch")

    @property
    def multiple(self) -> int:
        """Rows that a batch must be a multiple of: those of a mini-batch, which the data parallel size divides
        (`workers/engine_workers.py: train_mini_batch` asserts it)."""
        return self.ppo_mini_batch_size * self.n


def fill_up(batch: Batch, multiple: int) -> Batch:
    """Append copies of the batch's shortest row that no loss, group or metric counts.

    A whole copy, and not a short row made up: whatever veRL keeps by token stays consistent. There are fewer of them
    than a mini-batch has rows.

    Returns:
        A batch whose length is a multiple of `multiple`: `batch` itself where it is one already.
    """
    missing = -len(batch) % multiple
    if not missing:
        return batch
    source = min(range(len(batch)), key=lambda row: batch.tags[row]["seq_len"])
    row = queue.read([batch.keys[source]], batch.partition_id)[0]
    fields = {name: row[name] for name in row.keys()}
    fields |= {name: torch.zeros_like(fields[name]) for name in _ZEROED_FIELDS}
    uid = f"pad{uuid.uuid4().hex}"  # of no group
    keys = [f"{uid}_{session}_0" for session in range(missing)]
    tags = [{**batch.tags[source], IS_PADDING: True} for _ in keys]
    queue.write(keys, batch.partition_id, [{**fields, "uid": uid}] * missing, tags)
    logger.info("%d of %d rows are padding, up to whole mini-batches", missing, len(batch) + missing)
    return Batch(
        keys=batch.keys + keys,
        tags=batch.tags + tags,
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=batch.extra_info,
    )
