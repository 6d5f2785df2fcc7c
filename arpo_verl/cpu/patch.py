"""Training on a CPU needs one function of veRL 0.9.1 changed that no plugin point reaches.

`verl/utils/distributed.py`, in `initialize_global_process_group_ray`:

    backend = backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"

The string names one backend for the host's tensors and one for the accelerator's. On a CPU both are the same device:
the string is `cpu:gloo,cpu:gloo`, and torch refuses a device that is named twice. The patch asks for `cpu:gloo`
instead; a caller that names a backend gets that one. `tests/upstream` fails when veRL changes here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

BACKEND = "cpu:gloo"


def initialize_once_named(name: str, upstream: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `initialize_global_process_group_ray`, in the form that `Patch.apply` takes."""

    @functools.wraps(upstream)
    def initialize(timeout_second: float | None = None, backend: str | None = None) -> Any:
        return upstream(timeout_second=timeout_second, backend=backend or BACKEND)

    return initialize
