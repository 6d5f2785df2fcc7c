"""Beside a training run: what lets the stock veRL trainer run on a machine without a GPU.

For training: the CPU as a platform (`platform`), veRL's own FSDP2 engines on it (`engine`), one patch. For rollouts the
engine `transformers`: `cpu/replica.py: TransformersReplica` starts `cpu/server.py: TransformersServer`, a Ray actor
whose `generate` veRL calls for each reply and which batches requests in `cpu/generation/generator.py: Generator`;
`cpu/adapter.py: ServerAdapter` sends it the trainer's weights after each update. Where vLLM's CPU build is
installed, veRL's own vLLM rollout runs too (`vllm`, a second patch).

Importing this package registers nothing: `register()` does, and `arpo_verl.plugin` calls it where `VERL_PLATFORM=cpu`.
"""

from __future__ import annotations

import os

_registered = False


def register() -> None:
    """Register platform, training engines and rollout engine, and arm the patches. Safe to call in every process.

    Only the platform is registered at once; the rest waits until veRL imports the module that holds the registry.
    The process that starts Ray hands the environment set here on to all of Ray's.
    """
    global _registered
    if _registered:
        return
    # OpenMP threads wait for each other by spinning. With desktops on the same cores one of them often does not run,
    # and torch took 50 times as long as with threads that sleep; on idle cores sleeping costs some per cent.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # TransferQueue warns at each of its transfers that it asks for more threads than there are cores.
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
    from arpo_verl.cpu import engine, patch, platform, rollout, vllm
    from arpo_verl.post_import import when_imported
    from arpo_verl.upstream_patches import ONEDNN, PROCESS_GROUP

    for name, value in vllm.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    platform.register()
    PROCESS_GROUP.when_imported(patch.initialize_once_named)
    ONEDNN.when_imported(vllm.without_onednn)
    when_imported(engine.MODULE, engine.register)
    when_imported(rollout.REPLICA_MODULE, rollout.register_replica)
    when_imported(rollout.ADAPTER_MODULE, rollout.register_adapter)
    when_imported(rollout.WEIGHTS_MODULE, rollout.register_weights)
    _registered = True
