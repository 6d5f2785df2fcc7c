"""All that speaks to TransferQueue, in which veRL's V1 trainers keep the rows of a batch; no other module does.

veRL keeps a row under its key, in a partition, as fields with a tag beside them. A batch that the trainer passes around
is a `Batch`: `keys`, `tags` and `partition_id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import transfer_queue as tq
from ray.actor import ActorHandle
from tensordict import TensorDict
from transfer_queue import KVBatchMeta as Batch
from transfer_queue import interface
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

__all__ = [
    "TRAINING",
    "VALIDATION",
    "Batch",
    "TensorDict",
    "clear",
    "is_queued",
    "plain",
    "processes",
    "read",
    "rebatch",
    "set_status",
    "set_value",
    "tags",
    "write",
]

# veRL's names: validation goes through the same sampler in a partition of its own.
TRAINING, VALIDATION = "train", "val"


def read(keys: Sequence[str], partition_id: str, fields: Sequence[str] | None = None) -> TensorDict:
    """The named fields of the named rows, or all of them; a field that no row has is left out."""
    names = None if fields is None else list(fields)
    return tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=names)


def write(
    keys: Sequence[str],
    partition_id: str,
    rows: Sequence[Mapping[str, Any]],
    tags: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Put each row's fields under its key, over those of the same names; a tag replaces the row's."""
    fields = list_of_dict_to_tensordict([dict(row) for row in rows])
    more = {} if tags is None else {"tags": [dict(tag) for tag in tags]}
    tq.kv_batch_put(keys=list(keys), partition_id=partition_id, fields=fields, **more)


def rebatch(batch: Batch, keys: Sequence[str], tags: Mapping[str, Mapping[str, Any]]) -> Batch:
    """The batch with these rows in its place, in this order; `tags` by key."""
    return Batch(
        keys=list(keys),
        tags=[dict(tags[key]) for key in keys],
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=batch.extra_info,
    )


def tags(partition_id: str) -> dict[str, dict[str, Any]]:
    """Of all that the partition holds, prompts and rows, by key."""
    listed: dict[str, dict[str, dict[str, Any]]] = tq.kv_list(partition_id) or {}
    return listed.get(partition_id, {})


def clear(keys: Sequence[str], partition_id: str) -> None:
    """Remove prompts or rows."""
    tq.kv_clear(keys=list(keys), partition_id=partition_id)


def set_status(uid: str, partition_id: str, status: str) -> None:
    """Say of a prompt, in veRL's words, what became of it; the rest of its tag stays."""
    tq.kv_batch_put(keys=[uid], partition_id=partition_id, tags=[{"status": status}])


async def is_queued(key: str, partition_id: str) -> bool:
    """Whether the partition has this key, as a rollout worker finds it.

    Raises:
        RuntimeError: this process has no TransferQueue.
    """
    try:
        tq.get_client()  # without it, listing keys would start a Ray to look for a queue
        partitions = await tq.async_kv_list(partition_id=partition_id)
    except AssertionError as error:
        raise RuntimeError("this process has no TransferQueue") from error
    return key in partitions.get(partition_id, {})


def processes() -> dict[str, ActorHandle[Any]]:
    """The queue's own processes by name, as the process knows them that started the queue: its controller, and its
    storage. None any more once it has closed the queue."""
    storage = interface._TQ_STORAGE or {}
    controller = interface._TQ_CONTROLLER
    return {**storage.get("SimpleStorage", {}), **({} if controller is None else {"controller": controller})}


def set_value(batch: TensorDict, name: str, value: Any) -> None:
    """Give a batch a value that is no tensor and the same for all of its rows."""
    batch.set_non_tensor(name, value)


def plain(value: Any) -> Any:
    """A non-tensor cell without tensordict's wrapping."""
    return getattr(value, "data", value)
