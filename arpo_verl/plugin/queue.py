"""Access TransferQueue, in which veRL's V1 trainers keep the rows of a batch. Only this module does.

veRL keeps a row under its key, in a partition, as fields with a tag. A batch that the trainer passes around is a
`Batch`: `keys`, `tags` and `partition_id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import transfer_queue as tq
from tensordict import TensorDict as TensorDict
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

Batch: TypeAlias = tq.KVBatchMeta
# veRL's names. Validation goes through the same sampler in a partition of its own.
TRAINING, VALIDATION = "train", "val"


def read(keys: Sequence[str], partition_id: str, fields: Sequence[str] | None = None) -> TensorDict:
    """The named fields of the named rows, or all of them; a field that one of them lacks is left out."""
    names = None if fields is None else list(fields)
    return tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=names)


def write(
    keys: Sequence[str],
    partition_id: str,
    rows: Sequence[Mapping[str, Any]],
    tags: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write each row's fields under its key, over those of the same names; a tag replaces the row's tag."""
    fields = list_of_dict_to_tensordict([dict(row) for row in rows])
    more = {} if tags is None else {"tags": [dict(tag) for tag in tags]}
    tq.kv_batch_put(keys=list(keys), partition_id=partition_id, fields=fields, **more)


def rebatch(batch: Batch, keys: Sequence[str], tags: Mapping[str, Mapping[str, Any]]) -> Batch:
    """Return a batch with these rows instead, in this order; `tags` are by key."""
    return Batch(
        keys=list(keys),
        tags=[dict(tags[key]) for key in keys],
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=batch.extra_info,
    )


def tags(partition_id: str) -> dict[str, dict[str, Any]]:
    """Return the tags of all prompts and rows in the partition, by key."""
    listed: dict[str, dict[str, dict[str, Any]]] = tq.kv_list(partition_id) or {}
    return listed.get(partition_id, {})


def clear(keys: Sequence[str], partition_id: str) -> None:
    """Remove prompts or rows."""
    tq.kv_clear(keys=list(keys), partition_id=partition_id)


async def is_queued(key: str, partition_id: str) -> bool:
    """Return whether the partition contains this key, as seen by a rollout worker.

    Raises:
        RuntimeError: this process has no TransferQueue.
    """
    try:
        tq.get_client()  # without a client, listing keys would start a Ray to look for a queue
        partitions = await tq.async_kv_list(partition_id=partition_id)
    except AssertionError as error:
        raise RuntimeError("this process has no TransferQueue") from error
    return key in partitions.get(partition_id, {})


def plain(value: Any) -> Any:
    """Return a non-tensor cell without tensordict's wrapper."""
    return getattr(value, "data", value)
