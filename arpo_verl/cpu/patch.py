"""The one thing of veRL 0.9.1 that no plugin point reaches, patched.

`verl/utils/distributed.py`, in `initialize_global_process_group_ray`:

    backend = backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"

The string names one backend for the host's tensors and one for the accelerator's. On a CPU both are the same device, it
reads `cpu:gloo,cpu:gloo`, and torch refuses a device that is named twice. The patch asks for `cpu:gloo` instead;
a caller that names a backend gets what it asked for. `tests/upstream` fails when veRL changes here.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

MODULE = "verl.utils.distributed"
FUNCTION = "initialize_global_process_group_ray"
BACKEND = "cpu:gloo"


def apply(distributed: ModuleType) -> None:
    """Replace the function in `verl.utils.distributed`; a second call changes nothing."""
    upstream = getattr(distributed, FUNCTION)
    if getattr(upstream, "_arpo_verl_patched", False):
        return

    @functools.wraps(upstream)
    def initialize(timeout_second: float | None = None, backend: str | None = None) -> Any:
        return upstream(timeout_second=timeout_second, backend=backend or BACKEND)

    vars(initialize)["_arpo_verl_patched"] = True
    setattr(distributed, FUNCTION, initialize)
