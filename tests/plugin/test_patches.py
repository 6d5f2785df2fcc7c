"""veRL's functions that are replaced: what ours do, in whichever order plugins come, and that a lost one is missed."""

import asyncio
import os
import pickle
import pkgutil
import subprocess
import sys

import pytest
import torch
from tensordict import TensorDict
from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager
from verl.utils import tensordict_utils
from verl.workers import engine_workers
from verl.workers.engine import base

from arpo_verl.engines.pixels import LazyPixels
from arpo_verl.errors import PatchLostError
from arpo_verl.plugin.loop_manager import GuiAgentLoopManager

# Loaded before arpo_verl's plugin, as any other plugin may be.
ANOTHER_PLUGIN = """
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch as correct
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.distributed import initialize_global_process_group_ray as initialize
from verl.utils.tensordict_utils import maybe_fix_3d_position_ids as fix
from verl.workers import engine_workers
from verl.workers.engine import base
"""
IN_PLACE = """
import verl, another_plugin
from another_plugin import base, engine_workers, trainer_base
from arpo_verl.engines import cpu
from arpo_verl.engines.upstream_patches import EQUAL_LENGTHS, PROCESS_GROUP, ROLLOUT_CORRECTION
assert not hasattr(another_plugin.initialize, "__wrapped__"), "it came before the plugin"
cpu.register()
for patch in (EQUAL_LENGTHS, PROCESS_GROUP, ROLLOUT_CORRECTION):
    patch.check()
assert base.maybe_fix_3d_position_ids is engine_workers.maybe_fix_3d_position_ids is another_plugin.fix
assert trainer_base.compute_rollout_correction_and_add_to_batch is another_plugin.correct
assert engine_workers.initialize_global_process_group_ray is another_plugin.initialize
for ours in (another_plugin.fix, another_plugin.correct, another_plugin.initialize):
    assert ours.__wrapped__.__module__ == ours.__module__ and "arpo_verl" in ours.__code__.co_filename
print("all in place")
"""
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


@pytest.mark.release
def test_all_are_in_place_where_another_plugin_took_veRLs_functions_first(tmp_path):
    """A worker then failed on a step of equally long rows, and nothing had said that the patch was lost."""
    (tmp_path / "another_plugin.py").write_text(ANOTHER_PLUGIN)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "VERL_USE_EXTERNAL_MODULES": "another_plugin", "VERL_PLATFORM": ""}
    done = subprocess.run([sys.executable, "-c", IN_PLACE], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["all in place"], done.stderr[-3000:]


@pytest.mark.parametrize("taker", [engine_workers, base, tensordict_utils], ids=lambda module: module.__name__)
def test_a_row_does_not_come_to_a_worker_that_could_not_read_it(taker, monkeypatch):
    row = pickle.dumps(LazyPixels([b"screenshot"], "[]"))
    assert pickle.loads(row).screenshots == (b"screenshot",)
    fix = "maybe_fix_3d_position_ids"
    monkeypatch.setattr(taker, fix, getattr(taker, fix).__wrapped__)
    with pytest.raises(PatchLostError, match=rf"This process runs {taker.__name__}\.{fix} without .* equally long"):
        pickle.loads(row)


def test_a_trainer_without_its_patches_ends_before_its_first_step(monkeypatch):
    place = "verl.trainer.ppo.v1.trainer_base.compute_rollout_correction_and_add_to_batch"
    monkeypatch.setattr(place, pkgutil.resolve_name(place).__wrapped__)
    with pytest.raises(PatchLostError, match=f"This process runs {place} without"):
        asyncio.run(object.__new__(GuiAgentLoopManager)._init_agent_loop_workers())
