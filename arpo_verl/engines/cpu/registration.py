"""Register with veRL: its own FSDP2 training engines for a CPU, and the rollout engine `transformers`.

Every process of a run imports this module; only processes that run a part of the engine import that part.
"""

from __future__ import annotations

from types import ModuleType

from arpo_verl.engines.cpu.options import NAME
from arpo_verl.lib.post_import import when_imported

BACKEND = "fsdp2"
DEVICE = "cpu"


def register_when_imported() -> None:
    """Register each part once veRL imports the module with its registry."""
    when_imported("verl.workers.engine.fsdp.transformer_impl", _register_training)
    when_imported("verl.workers.rollout.replica", _register_replica)
    when_imported("verl.workers.rollout.base", _register_adapter)
    when_imported("verl.checkpoint_engine.base", _register_weights)


def _register_training(transformer_impl: ModuleType) -> None:
    """Register veRL's engines for `cpu`; a second call changes nothing.

    Upstream registers them for cuda and npu only (the decorators in `verl/workers/engine/fsdp/transformer_impl.py`).
    They need no accelerator: they ask the platform for device, collectives and memory. FSDP1 refuses parameters on the
    CPU, so we do not register the backend `fsdp`, and veRL refuses a recipe that does not name `fsdp2`.
    """
    from verl.workers.engine.base import EngineRegistry

    engines = {
        "language_model": transformer_impl.FSDPEngineWithLMHead,
        "value_model": transformer_impl.FSDPEngineWithValueHead,
    }
    for model_type, engine in engines.items():
        if DEVICE not in EngineRegistry._engines.get(model_type, {}).get(BACKEND, {}):
            EngineRegistry.register(model_type=model_type, backend=BACKEND, device=DEVICE)(engine)


def _register_replica(replica: ModuleType) -> None:
    replica.RolloutReplicaRegistry.register(NAME, _load_replica)


def _load_replica() -> type:
    from arpo_verl.engines.cpu.replica import TransformersReplica

    return TransformersReplica


def _register_adapter(base: ModuleType) -> None:
    base._ROLLOUT_REGISTRY[(NAME, "async")] = "arpo_verl.engines.cpu.adapter.ServerAdapter"


def _register_weights(base: ModuleType) -> None:
    import arpo_verl.engines.cpu.weights  # noqa: F401  registers on import
