"""Start the server actor, and call it for veRL's managers."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.replica import RolloutMode, RolloutReplica

from arpo_verl.engines.cpu.options import NAME
from arpo_verl.errors import ConfigError


def server_name(replica_rank: int, name_suffix: str = "") -> str:
    """Return the server actor's name, by which the trainer's adapter finds it."""
    return f"{NAME}_server_{replica_rank}_0{name_suffix}"


class TransformersReplica(RolloutReplica):
    """One server beside the one worker that brings it weights."""

    async def launch_servers(self) -> None:
        """Start the server actor on the node of the worker that brings it weights: the training worker, or veRL's
        worker of the checkpoint engine in a trainer mode with separate rollouts.

        Raises:
            ConfigError: a replica has more than one worker, or the model is no policy.
        """
        modes = (RolloutMode.HYBRID, RolloutMode.STANDALONE)
        if self.world_size != 1 or self.rollout_mode not in modes or self.is_reward_model:
            raise ConfigError(
                "rollout.name=transformers serves one policy with one worker: set tensor, data and pipeline parallel "
                f"sizes to 1, got {self.world_size} workers in mode {self.rollout_mode}"
            )
        from arpo_verl.engines.cpu.server import TransformersServer

        node_id = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        server = (
            ray.remote(TransformersServer)
            .options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
                name=server_name(self.replica_rank, self.name_suffix),
                max_concurrency=self.max_concurrency,
            )
            .remote(self.config, self.model_config, self.replica_rank)
        )
        await server.__ray_ready__.remote()
        self.servers = [server]
        self._server_handle = server
        # There is no HTTP server: the address only names the replica in veRL's load balancer.
        self._server_address = server_name(self.replica_rank, self.name_suffix)

    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """Cut off one request."""
        outcome: dict[str, Any] = await self.servers[0].abort_request.remote(request_id)
        return outcome
