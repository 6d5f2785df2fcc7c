import functools
import pickle

import pytest
from omegaconf import OmegaConf

from arpo_verl.plugin.frontier import TRAINING_FRONTIER


@pytest.fixture(autouse=True)
def no_frontier_of_another_test(monkeypatch):
    """A dataset of this process opens it for the sampler, and a training run has one process."""
    monkeypatch.setattr(TRAINING_FRONTIER, "frontier", None)


@pytest.fixture(scope="session")
def compose():
    """Compose veRL's own recipe with the lines that select replay, resolved as the trainer's process does it."""
    from support.composed import compose_verls_own

    replay = [
        "algorithm.adv_estimator=replay_grpo",
        "+algorithm.replay=${replay}",
        "trainer.v1.sampler.custom_sampler.path=pkg://arpo_verl.plugin.sampler",
        "trainer.v1.sampler.custom_sampler.name=ReplaySampler",
        "+trainer.v1.sampler.sampler_kwargs.replay=${replay}",
        "+trainer.v1.sampler.sampler_kwargs.model_path=${actor_rollout_ref.model.path}",
        "+trainer.v1.sampler.sampler_kwargs.tokenizer_path=${actor_rollout_ref.model.tokenizer_path}",
        "+trainer.v1.sampler.sampler_kwargs.custom_chat_template=${actor_rollout_ref.model.custom_chat_template}",
        "+trainer.v1.sampler.sampler_kwargs.filter_groups=${algorithm.filter_groups}",
        "+trainer.v1.sampler.sampler_kwargs.mm_processor_kwargs=${data.mm_processor_kwargs}",
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
