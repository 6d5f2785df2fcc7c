"""What the CPU part registers with veRL, in a fresh interpreter, and its patches."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from arpo_verl.engines.upstream_patches import ONEDNN, PROCESS_GROUP, Patch
from arpo_verl.errors import PatchLostError

FRESH = """
import logging, sys
import verl
assert "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl" not in sys.modules, "registering must stay cheap"
from arpo_verl.engines import cpu
cpu.register(); cpu.register()
import os, torch
assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
from verl.plugin.platform import get_platform
from verl.utils.device import get_device_id, get_device_name, get_resource_name
assert type(get_platform()).__name__ == "CpuPlatform", get_platform()
assert (get_device_name(), get_device_id(), get_resource_name()) == ("cpu", torch.device("cpu"), "GPU")
from verl.workers.engine import EngineRegistry
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import get_rollout_replica_class
assert EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__ == "FSDPEngineWithLMHead"
assert EngineRegistry.get_engine_cls("value_model", "fsdp2").__name__ == "FSDPEngineWithValueHead"
assert get_rollout_class("transformers").__module__ == "arpo_verl.engines.cpu.adapter"
assert get_rollout_replica_class("transformers").__module__ == "arpo_verl.engines.cpu.replica"
from verl.utils.distributed import initialize_global_process_group_ray
assert initialize_global_process_group_ray.__module__ == "verl.utils.distributed"
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
initialize_global_process_group_ray()
torch.distributed.all_reduce(torch.ones(1))
print(torch.distributed.get_backend())
"""


@pytest.mark.release
def test_fresh_interpreter_registers_everything_by_the_environment_variable_alone():
    """And more than once; and the patched process group of one works."""
    env = {**os.environ, "VERL_PLATFORM": "cpu", "PYTHONWARNINGS": "ignore"}
    env.pop("OMP_WAIT_POLICY", None)
    done = subprocess.run([sys.executable, "-c", FRESH], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "cpu:gloo"


def test_torch_still_refuses_a_device_that_is_named_twice():
    with pytest.raises(ValueError, match="cpu:gloo,cpu:gloo"):
        torch.distributed.distributed_c10d.BackendConfig(torch.distributed.Backend("cpu:gloo,cpu:gloo"))


def test_patch_keeps_the_backend_that_a_caller_names():
    from arpo_verl.engines.cpu.patch import initialize_once_named

    patch = Patch("stand_in", PROCESS_GROUP.names, "")
    module = ModuleType("stand_in")
    module.initialize_global_process_group_ray = lambda timeout_second=None, backend=None: (timeout_second, backend)
    patch.apply(module, initialize_once_named)
    assert module.initialize_global_process_group_ray() == (None, "cpu:gloo")
    assert module.initialize_global_process_group_ray(5, backend="cpu:mpi") == (5, "cpu:mpi")


def test_log_probs_at_once_are_upstreams_bit_by_bit_and_so_are_their_gradients():
    from verl.utils.torch_functional import logprobs_from_logits_v2

    from arpo_verl.engines.cpu.patch import log_probs_at_once

    upstream = inspect.unwrap(logprobs_from_logits_v2)
    ours = log_probs_at_once("logprobs_from_logits_v2", upstream)
    labels = torch.randint(1328, (40,))
    drawn = torch.randn(40, 1328) * 5
    made = []
    for function in (upstream, ours):
        logits = drawn.clone().requires_grad_()
        log_probs = function(logits, labels)
        log_probs.sum().backward()
        made.append((log_probs, logits.grad))
    assert all(map(torch.equal, *made))


@pytest.mark.parametrize(
    ("patch", "upstream", "ask"),
    [
        (PROCESS_GROUP, lambda: None, "communication_backend_name"),  # as upstream's function does, and ours does not
        (ONEDNN, True, "is_ipc_supported"),  # as a worker of vLLM's does before it takes weights
    ],
    ids=["process group", "oneDNN"],
)
def test_the_platform_misses_a_patch_in_the_process_that_needs_it(patch, upstream, ask, monkeypatch):
    from arpo_verl.engines.cpu.platform import CpuPlatform

    stand_in = ModuleType(patch.module)
    setattr(stand_in, patch.names[0], upstream)
    monkeypatch.setitem(sys.modules, patch.module, stand_in)
    with pytest.raises(PatchLostError, match=patch.without):
        getattr(CpuPlatform(), ask)()


def test_device_module_is_a_copy_of_torch_cpu():
    from arpo_verl.engines.cpu.platform import CpuPlatform

    module = CpuPlatform().device_module
    assert module.current_device() == torch.cpu.current_device()
    assert not module.is_available() and module.max_memory_allocated() > 0
    assert not hasattr(torch.cpu, "max_memory_allocated")
