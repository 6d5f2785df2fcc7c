"""This module registers the rollout engine `transformers` with veRL: replica, adapter and checkpoint engine.

It is thin because every process of a run imports it; only the processes that run the engine's parts import those.
"""

from __future__ import annotations

from types import ModuleType

from arpo_verl.engines.cpu.options import NAME

REPLICA_MODULE = "verl.workers.rollout.replica"
ADAPTER_MODULE = "verl.workers.rollout.base"
WEIGHTS_MODULE = "verl.checkpoint_engine.base"


def register_replica(replica: ModuleType) -> None:
    """Register the server side with the imported module `verl.workers.rollout.replica`."""
    replica.RolloutReplicaRegistry.register(NAME, _load_replica)


def register_adapter(base: ModuleType) -> None:
    """Register the trainer's side with the imported module `verl.workers.rollout.base`."""
    base._ROLLOUT_REGISTRY[(NAME, "async")] = "arpo_verl.engines.cpu.adapter.ServerAdapter"


def register_weights(base: ModuleType) -> None:
    """Register the checkpoint engine `ray`, once `verl.checkpoint_engine.base` is imported."""
    import arpo_verl.engines.cpu.weights  # noqa: F401  registers on import


def _load_replica() -> type:
    from arpo_verl.engines.cpu.replica import TransformersReplica

    return TransformersReplica
