"""A checkpoint as EasyR1 writes it: shards of DTensors under older names, which the merger of veRL reads."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.release

# Two processes, as FSDP shards a model: along the first dimension, over a mesh of that name.
SHARDS = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

def write(rank, folder, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    weights = torch.load(f"{folder}/weights.pt")
    shards = {name: distribute_tensor(weight, mesh, [Shard(0)]) for name, weight in weights.items()}
    torch.save(shards, f"{folder}/model_world_size_2_rank_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    multiprocessing.spawn(write, args=sys.argv[1:], nprocs=2)
"""


def test_verls_merger_reads_their_shards_once_the_world_size_is_told(model_path, tmp_path):
    from transformers import AutoModelForImageTextToText

    actor = tmp_path / "actor"
    shutil.copytree(model_path, actor / "huggingface", ignore=shutil.ignore_patterns("*.safetensors"))
    weights = AutoModelForImageTextToText.from_pretrained(model_path).state_dict()
    older = {
        n.replace("model.visual.", "visual.").replace("model.language_model.", "model."): w for n, w in weights.items()
    }
    assert older.keys() != weights.keys()
    torch.save(older, actor / "weights.pt")
    (tmp_path / "shards.py").write_text(SHARDS)
    subprocess.run([sys.executable, tmp_path / "shards.py", actor, tmp_path / "store"], check=True, timeout=300)

    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(actor)]
    command += ["--target_dir", str(tmp_path / "merged")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert refused.returncode != 0 and "fsdp_config.json does not exist" in refused.stderr
    (actor / "fsdp_config.json").write_text(json.dumps({"world_size": 2}))
    subprocess.run(command, check=True, timeout=300)
    merged = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged").state_dict()
    assert merged.keys() == weights.keys()
    assert all(torch.equal(merged[name].bfloat16(), weight.bfloat16()) for name, weight in weights.items())
