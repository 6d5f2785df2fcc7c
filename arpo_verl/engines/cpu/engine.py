"""This module registers veRL's own FSDP2 training engines for the device `cpu`.

Upstream registers them for cuda and npu only (the decorators in `verl/workers/engine/fsdp/transformer_impl.py`). The
classes need no accelerator: they ask the platform for device, collectives and memory. FSDP1 refuses parameters on the
CPU, so the backend `fsdp` is not registered, and veRL refuses a recipe that does not name `fsdp2`.
"""

from __future__ import annotations

from types import ModuleType

MODULE = "verl.workers.engine.fsdp.transformer_impl"
BACKEND = "fsdp2"
DEVICE = "cpu"


def register(transformer_impl: ModuleType) -> None:
    """Register the engines of the imported module `transformer_impl`; a second call changes nothing."""
    from verl.workers.engine.base import EngineRegistry

    engines = {
        "language_model": transformer_impl.FSDPEngineWithLMHead,
        "value_model": transformer_impl.FSDPEngineWithValueHead,
    }
    for model_type, engine in engines.items():
        if DEVICE not in EngineRegistry._engines.get(model_type, {}).get(BACKEND, {}):
            EngineRegistry.register(model_type=model_type, backend=BACKEND, device=DEVICE)(engine)
