"""Bytes of rows as TransferQueue sends them, by its own encoder: with pixel values, as stock veRL's, and without.

A row is put once by its rollout worker, and fetched by the training processes each time that they score it or update by
it: as many times with the one as with the other, so the ratio is a step's. Ray's object store has rows' keys and tags
alone, with both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transfer_queue.utils.serial_utils import encode
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from arpo_verl.pixels import LazyPixels

INPUTS = "multi_modal_inputs"


def sent_bytes(row: Mapping[str, Any]) -> int:
    """Of one row, all its fields, as they go to a storage unit (`AsyncSimpleStorageManager.put_data`)."""
    fields = list_of_dict_to_tensordict([dict(row)])
    return sum(memoryview(frame).nbytes for frame in encode({name: fields[name] for name in fields.keys()}))


def made(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A row's `multi_modal_inputs` with the pixel values made, as the training engine has them."""
    return {name: value.tensor() if isinstance(value, LazyPixels) else value for name, value in inputs.items()}


def compare(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Of rows that carry screenshots: their bytes, those of the same rows with pixel values, and how many times fewer.

    Args:
        rows: all their fields, as they are in the queue; taken one by one, since pixel values are large.
    """
    sizes = [(sent_bytes({**row, INPUTS: made(row[INPUTS])}), sent_bytes(row)) for row in rows]
    pixels, screenshots = (sum(column) for column in zip(*sizes, strict=True))
    return {"bytes_with_pixels": pixels, "bytes_with_screenshots": screenshots, "bytes_ratio": pixels / screenshots}
