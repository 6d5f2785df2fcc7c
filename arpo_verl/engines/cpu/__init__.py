"""Let the stock veRL trainer run on a machine without a GPU.

Training uses the CPU as a platform (`platform`), veRL's own FSDP2 engines on it (`registration`) and two patches.
Rollouts use the engine `transformers`. `engines/cpu/replica.py: TransformersReplica` starts `engines/cpu/server.py:
TransformersServer`, a Ray actor whose `generate` veRL calls for each reply. It batches requests in
`engines/cpu/generation/generator.py: Generator`, and `engines/cpu/adapter.py: ServerAdapter` sends it the trainer's
weights after each update. If vLLM's CPU build is installed, veRL's own vLLM rollout runs too (a third patch).

Importing this package registers nothing: `arpo_verl.plugin` calls `register()` if `VERL_PLATFORM=cpu`.
"""

from __future__ import annotations

import os

_registered = False


def register() -> None:
    """Register platform, training engines and rollout engine, and arm the patches. Every process may call this.

    Only the platform is registered at once; the rest waits until veRL imports the module that holds the registry.
    The process that starts Ray passes the environment set here to all of Ray's processes.
    """
    global _registered
    if _registered:
        return
    # By default OpenMP threads wait for each other by spinning. With desktops on the same cores one of them often does
    # not run, and torch took 50 times as long as with threads that sleep. On idle cores sleeping costs a few per cent.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # TransferQueue warns at each transfer that it asks for more threads than there are cores.
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
    from arpo_verl.engines.cpu import patch, platform, registration
    from arpo_verl.engines.upstream_patches import LOG_PROBS, ONEDNN, PROCESS_GROUP, may_patch_verl

    for name, value in patch.VLLM_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    platform.register()
    if may_patch_verl():
        PROCESS_GROUP.when_imported(patch.initialize_once_named)
        LOG_PROBS.when_imported(patch.log_probs_at_once)
        ONEDNN.when_imported(patch.without_onednn)
    registration.register_when_imported()
    _registered = True
