"""Registers the rollout engine `transformers` with veRL: replica, adapter, and the way of the weights.

Thin on purpose: every process of a run imports this module; the engine's parts are imported where they run.
"""

from __future__ import annotations

from types import ModuleType

from arpo_verl.cpu.options import NAME

REPLICA_MODULE = "verl.workers.rollout.replica"
ADAPTER_MODULE = "verl.workers.rollout.base"
WEIGHTS_MODULE = "verl.checkpoint_engine.base"


def register_replica(replica: ModuleType) -> None:
    """Register the server side with the imported module `verl.workers.rollout.replica`."""
    replica.RolloutReplicaRegistry.register(NAME, _load_replica)


def register_adapter(base: ModuleType) -> None:
    """Register the trainer's side with the imported module `verl.workers.rollout.base`."""
    base._ROLLOUT_REGISTRY[(NAME, "async")] = "arpo_verl.cpu.adapter.ServerAdapter"


def register_weights(base: ModuleType) -> None:
    """Register the way of the weights between them, once `verl.checkpoint_engine.base` is imported."""
    import arpo_verl.cpu.weights  # noqa: F401  registers on import


def _load_replica() -> type:
    from arpo_verl.cpu.replica import TransformersReplica

    return TransformersReplica
