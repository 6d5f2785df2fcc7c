"""What vLLM's rollout needs on a CPU: the hook, the places in vLLM that it leans on, and a run."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
from safetensors.torch import load_file
from support import ROOT
from trainer_run import copy_tasks, read_steps

from arpo_verl.engines.cpu import patch
from arpo_verl.engines.upstream_patches import ONEDNN
from arpo_verl.tools.policy.shipped import write_shipped

# In the other environment: in this one vLLM cannot be.
UPSTREAM = """
import inspect, json, os
import verl, torch
from vllm.plugins import load_general_plugins
load_general_plugins()
import vllm._custom_ops as ops
from vllm.distributed.device_communicators import shm_broadcast
from vllm.model_executor.layers import utils
source = inspect.getsource(utils.dispatch_cpu_unquantized_gemm)
layer = torch.nn.Linear(64, 64, bias=False)
weight, x = layer.weight.data_ptr(), torch.randn(2, 64)
expected = layer(x)
utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
answers = {
    "offered": hasattr(torch.ops._C, "create_onednn_mm_handler"),
    "flag": ops._supports_onednn,
    "read": "ops._supports_onednn" in source,
    # A newer vLLM reads no variable, and has these kernels for weights of 16 bits alone; ours have 32.
    "switched": "envs.VLLM_CPU_SGL_KERNEL" in source or "if check_cpu_sgl_kernel(N, K, dtype):" in source,
    "removes": source.count("layer.weight = torch.nn.Parameter("),
    "kept": layer.weight.data_ptr() == weight,
    "same": torch.allclose(layer.cpu_linear(x, layer.weight, None), expected, atol=1e-5),
    "told": hasattr(shm_broadcast.ShmRingBuffer.__init__, "__wrapped__"),
    "made": "create=True, size=self.total_bytes_of_buffer" in inspect.getsource(shm_broadcast.ShmRingBuffer),
    "environment": {name: os.environ.get(name) for name in os.environ if name.startswith("VLLM_CPU")},
}
print(json.dumps(answers))
"""

KNOWN_IMAGE = """
import inspect, uuid
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.parse import MultiModalDataParser
from arpo_verl.lib.images import LazyImage
from arpo_verl.types import Size

def unread():
    raise AssertionError("a pixel was looked at")

def key(id):
    (item,) = MultiModalDataParser().parse_mm_data({"image": [LazyImage(Size(1920, 1080), id, unread)]})["image"]
    algorithm = ["blake3"] if "algorithm" in inspect.signature(MultiModalHasher.hash_kwargs).parameters else []
    return MultiModalHasher.hash_kwargs(*algorithm, model_id="model", image=item, max_pixels=9)

first, other = uuid.UUID(int=1), uuid.UUID(int=2)
assert key(first) == key(first) != key(other)
"""


def test_hook_takes_the_kernel_away_and_refuses_a_vllm_that_has_no_such_flag():
    custom_ops = ModuleType("stand_in")
    custom_ops._supports_onednn = True
    ONEDNN.apply(custom_ops, patch.without_onednn)
    assert custom_ops._supports_onednn is False
    with pytest.raises(AttributeError, match="_supports_onednn"):
        ONEDNN.apply(ModuleType("another"), patch.without_onednn)


@pytest.mark.vllm
@pytest.mark.parametrize("platform", ["cpu", ""])
def test_vllm_is_as_the_hook_takes_it(python, platform):
    answers = json.loads(python("-c", UPSTREAM, VERL_PLATFORM=platform).splitlines()[-1])
    assert answers["offered"] and answers["read"] and answers["switched"] and answers["removes"] == 3, "it must follow"
    assert answers["told"] and answers["made"] and answers["same"]
    hooked = platform == "cpu"
    assert answers["flag"] is not hooked and answers["kept"] is hooked
    assert (answers["environment"] == patch.VLLM_ENVIRONMENT) is hooked


@pytest.mark.vllm
def test_vllms_image_cache_knows_a_screenshot_without_its_pixels(python):
    python("-c", KNOWN_IMAGE)


@pytest.mark.vllm
@pytest.mark.desktop
def test_stock_trainer_trains_through_verls_vllm_rollout(python, tmp_path):
    python(str(ROOT / "benchmarks" / "vllm_rollout.py"), "--smoke", "--json", str(tmp_path / "figures.json"))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["dropped_sessions"] == 0 and figures["rollout_probs_diff_max"] < 1e-3
    assert figures["cached_share_from_turn_1"] > 0.5 and figures["images_processed_of_sent"] < 0.2
    assert figures["segments_left"] == []


@pytest.mark.vllm
@pytest.mark.desktop
def test_lora_trains_what_the_engine_rolls_out(python, tmp_path):
    """By docs/faq.md's line: after the first update the engine samples with the adapters."""
    write_shipped("embedded", tmp_path / "policy")
    copy_tasks(tmp_path / "tasks")
    model, rollout = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
    python(
        *("-m", "verl.trainer.main_ppo", f"--config-dir={ROOT / 'recipes'}", "--config-name=embedded"),
        *("+engine=vllm_cpu", f"run_dir={tmp_path / 'run'}", f"{model}.path={tmp_path / 'policy'}", f"{rollout}.n=2"),
        *(f"data.train_files={tmp_path / 'tasks'}", f"data.val_files={tmp_path / 'tasks'}", "data.train_batch_size=4"),
        *("trainer.total_training_steps=2", "trainer.save_freq=2", "trainer.val_before_train=false"),
        *(f"{model}.lora_rank=8", f"{model}.lora_alpha=16", f"{model}.exclude_modules='.*visual.*'"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.lr=1e-3"),
        VERL_PLATFORM="cpu",
    )
    steps = read_steps(tmp_path / "run")
    assert sorted(steps) == [1, 2] and not any(step["environment/dropped_sessions"] for step in steps.values())
    assert all(step["replay/without/training/rollout_probs_diff_max"] < 1e-3 for step in steps.values())
    (adapter,) = (tmp_path / "run").glob("**/global_step_2/actor/lora_adapter/adapter_model.safetensors")
    tensors = load_file(adapter)
    assert not [name for name in tensors if "visual" in name]
    assert any(tensor.any() for name, tensor in tensors.items() if "lora_B" in name), "nothing was learnt"
