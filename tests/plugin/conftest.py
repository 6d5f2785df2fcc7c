import functools
import pickle

import pytest
from omegaconf import OmegaConf


@pytest.fixture(scope="session")
def compose():
    """Compose veRL's own recipe with the lines that select replay, resolved as the trainer's process does it."""
    from support.composed import compose_verls_own

    replay = [
        "algorithm.adv_estimator=replay_grpo",
        "trainer.v1.sampler.custom_sampler.path=pkg://arpo_verl.plugin.sampler",
        "trainer.v1.sampler.custom_sampler.name=ReplaySampler",
        "trainer.resume_mode=disable",
        # Mini-batches of one episode, on one GPU: no batch is filled up, whatever its size.
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.rollout.n=1",
        "trainer.n_gpus_per_node=1",
    ]

    @functools.cache
    def resolved(*overrides):
        config = compose_verls_own("+replay.enable=true", *replay, *overrides)
        OmegaConf.resolve(config)
        return pickle.dumps(config)

    return lambda *overrides: pickle.loads(resolved(*overrides))


@pytest.fixture(scope="session")
def rollouts(policy):
    from support.queue_rows import Rollouts

    return Rollouts(*policy)
