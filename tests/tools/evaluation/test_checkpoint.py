"""From what a user names to a model's folder."""

import json
import shutil
import subprocess
import sys

import pytest

from arpo_verl.errors import ConfigError
from arpo_verl.tools.evaluation.checkpoint import find_checkpoint, model_folder

# What veRL saves with FSDP: each rank's shard of every parameter, as a DTensor, beside the model's own files.
SAVE = """
import sys, torch
from pathlib import Path
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, Shard
from transformers import AutoModelForImageTextToText
rank = int(sys.argv[3])
torch.distributed.init_process_group("gloo", f"file://{sys.argv[2]}/../store", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
model = AutoModelForImageTextToText.from_pretrained(sys.argv[1], dtype=torch.float32)
state = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in model.state_dict().items()}
torch.save(state, Path(sys.argv[2]) / f"model_world_size_2_rank_{rank}.pt")
"""


def make_step(run, number, *files):
    actor = run / "checkpoints" / f"global_step_{number}" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    for name in ("fsdp_config.json", "model_world_size_1_rank_0.pt", *files):
        (actor / name).write_text(name + str(number))
    return actor


def test_a_checkpoint_is_found_from_every_folder_around_it(tmp_path):
    actor = make_step(tmp_path, 12)
    make_step(tmp_path, 9)
    found = {find_checkpoint(path) for path in (tmp_path, actor.parents[1], actor.parent, actor)}
    assert [(one.name, one.folder, one.is_sharded) for one in found] == [(actor.parent, actor, True)]


def test_a_model_that_veRL_saved_whole_needs_no_merge(tmp_path):
    actor = make_step(tmp_path, 1, "huggingface/model.safetensors")
    found = find_checkpoint(actor)
    assert not found.is_sharded and model_folder(found, tmp_path) == actor / "huggingface"


def test_a_step_that_is_not_saved_whole_is_passed_over(tmp_path):
    actor = make_step(tmp_path, 9)
    (make_step(tmp_path, 12) / "fsdp_config.json").unlink()  # written after the shards
    assert find_checkpoint(tmp_path).folder == actor


@pytest.mark.parametrize("file", ["lora_train_meta.json", "huggingface/model.safetensors"])
def test_an_adapters_checkpoint_is_refused_since_its_base_alone_would_be_played(tmp_path, file):
    actor = make_step(tmp_path, 1, "lora_train_meta.json", file)
    with pytest.raises(ConfigError, match="--model must be a checkpoint of whole weights, but .* is one of LoRA"):
        find_checkpoint(actor)


def test_other_weights_are_another_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    names = []
    for content in (b"a" * (3 << 20), b"a" * (3 << 20), b"a" * (3 << 20) + b"b", b"b" + b"a" * ((3 << 20) - 1)):
        (tmp_path / "model.safetensors").write_bytes(content)
        names.append(find_checkpoint(tmp_path).facts["weights"])
    assert names[0] == names[1] and len(set(names)) == 3
    assert find_checkpoint(tmp_path).facts["model"] == str(tmp_path)


@pytest.mark.parametrize("made", [(), ("config.json",), ("actor/fsdp_config.json",), ("actor/model/huggingface/x",)])
def test_what_is_none_is_refused(tmp_path, made):
    for name in made:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match="--model must be a folder with a model"):
        find_checkpoint(tmp_path)


def test_shards_that_the_merger_refuses_leave_nothing(tmp_path, monkeypatch):
    make_step(tmp_path / "run", 1)
    monkeypatch.setattr("arpo_verl.tools.evaluation.checkpoint.sys.executable", shutil.which("false"))
    with pytest.raises(ConfigError, match="veRL's merger failed for"):
        model_folder(find_checkpoint(tmp_path / "run"), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.release
def test_verls_own_merger_joins_the_shards_once(tmp_path, model_path):
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    actor = make_step(tmp_path / "run", 1)
    (actor / "model_world_size_1_rank_0.pt").unlink()
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
    script = tmp_path / "save.py"
    script.write_text(SAVE)
    save = [sys.executable, str(script), model_path, str(actor)]
    ranks = [subprocess.Popen([*save, rank]) for rank in ("0", "1")]
    try:
        assert [rank.wait(300) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    model = AutoModelForImageTextToText.from_pretrained(model_path, dtype=torch.float32)
    model.config.save_pretrained(actor / "huggingface")
    AutoProcessor.from_pretrained(model_path).save_pretrained(actor / "huggingface")
    found = find_checkpoint(tmp_path / "run")
    folder = model_folder(found, tmp_path / "out")
    merged = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(merged[name], value.bfloat16().float()), name
    before = folder.stat().st_mtime_ns
    assert model_folder(found, tmp_path / "out") == folder and folder.stat().st_mtime_ns == before
    assert AutoProcessor.from_pretrained(folder)
