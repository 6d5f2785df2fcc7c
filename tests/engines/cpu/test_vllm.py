"""What vLLM's rollout needs on a CPU: the hook, the places in vLLM that it leans on, and a run."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
from support import ROOT

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
def test_engine_agrees_with_adapters_that_were_trained(python, tmp_path):
    """By docs/faq.md's options, after each of two updates: finding U2."""
    write_shipped("embedded", tmp_path / "policy")
    script = str(ROOT / "tests" / "support" / "vllm_lora.py")
    output = python(script, str(tmp_path / "policy"), VERL_PLATFORM="cpu", ARPO_VERL_RUN="1")
    before, *after = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(after) == 2 and before["without_adapters"] < 1e-4
    for each in (before, *after):
        assert each["probs_diff_max"] < 1e-4
    for each in after:
        assert each["without_adapters"] > 0.01, "the adapters must show"
        assert each["modules"] and not [name for name in each["modules"] if "visual" in name]
