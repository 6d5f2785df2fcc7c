"""The way of the weights to rollout workers that are not the training workers, through a real Ray."""

import asyncio

import pytest
import torch
from verl.checkpoint_engine import CheckpointEngineRegistry

from arpo_verl.engines.cpu.weights import RayCheckpointEngine


def test_the_recipes_backend_is_this_engine():
    assert CheckpointEngineRegistry.get("ray") is RayCheckpointEngine


@pytest.mark.release
def test_every_receiver_gets_all_weights_of_each_update_from_the_master_alone(local_ray):
    master, other = RayCheckpointEngine(1, is_master=True), RayCheckpointEngine(1)
    receivers = [RayCheckpointEngine(1), RayCheckpointEngine(1)]
    training, rollout = [master, other], receivers

    async def update(value):
        metadata = [engine.prepare() for engine in training + rollout]
        for engines, kwargs in zip(
            (training, rollout), RayCheckpointEngine.build_topology(2, 2, metadata), strict=True
        ):
            for rank, engine in enumerate(engines):
                engine.init_process_group(**{name: values[rank] for name, values in kwargs.items()})
        weights = {"a": torch.full((2, 3), value, dtype=torch.bfloat16), "b": torch.arange(4.0)}

        async def receive(engine):
            return {name: tensor async for name, tensor in engine.receive_weights()}

        results = await asyncio.gather(
            *(engine.send_weights(iter(weights.items())) for engine in training), *map(receive, rollout)
        )
        for engine in training + rollout:
            engine.finalize()
        return results[2:]

    for value in (1.0, 2.0):  # the second update goes through the same inboxes
        for received in asyncio.run(update(value)):
            assert received["a"].dtype == torch.float32 and received["a"].tolist() == [[value] * 3] * 2
            assert received["b"].tolist() == [0, 1, 2, 3]
            received["a"].zero_()  # what is received can be written to
