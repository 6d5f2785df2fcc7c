"""Position ids of rows that a worker reads from the queue, whatever their lengths."""

import pickle

import pytest
import torch
from tensordict import TensorDict
from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager
from verl.utils import tensordict_utils
from verl.workers import engine_workers
from verl.workers.engine import base

LENGTHS = [[6], [4], [4, 4], [6, 6, 6], [16, 16, 16, 16], [6, 5, 6], [4, 8]]


def read(lengths):
    """What a worker is given of rows of these lengths, and each row's own position ids (4, T)."""
    rows = [torch.arange(4 * length).view(4, length) + 100 * index for index, length in enumerate(lengths)]
    fields = {"position_ids": rows, "input_ids": [row[0] for row in rows]}
    packed = {name: AsyncSimpleStorageManager._pack_field_values(values) for name, values in fields.items()}
    return TensorDict(packed, batch_size=[len(rows)]), rows


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("arrived", [False, True], ids=["read", "pickled"])
def test_mini_batches_have_each_rows_position_ids(lengths, arrived):
    data, rows = read(lengths)
    if arrived:
        data = pickle.loads(pickle.dumps(data))
    engine_workers.maybe_fix_3d_position_ids(data)
    seen = []
    for batch in tensordict_utils.make_iterator(data, mini_batch_size=1, epochs=1, seed=1, dataloader_kwargs={}):
        base.maybe_fix_3d_position_ids(batch)
        (ids,) = batch["position_ids"].unbind()
        assert batch["position_ids"].values().shape == ids.shape
        seen.append(ids)
    assert sorted(map(str, seen)) == sorted(map(str, rows))


def test_verl_by_itself_cannot_read_them():
    data, _ = read([6, 6])
    tensordict_utils.maybe_fix_3d_position_ids.__wrapped__(data)
    with pytest.raises(RuntimeError):
        data["position_ids"].unbind()


def test_rows_without_them_are_left_alone():
    data = TensorDict({"input_ids": torch.zeros(2, 3)}, batch_size=[2])
    engine_workers.maybe_fix_3d_position_ids(data)
    assert list(data.keys()) == ["input_ids"]
