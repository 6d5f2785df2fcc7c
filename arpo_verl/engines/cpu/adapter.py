"""Send the weights to the server actor: the trainer's side of the rollout engine `transformers`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import ray
import torch
from ray.actor import ActorHandle
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.utils import ensure_async_iterator

from arpo_verl.engines.cpu.model import to_array
from arpo_verl.engines.cpu.replica import server_name
from arpo_verl.errors import ConfigError

if TYPE_CHECKING:
    from arpo_verl.engines.cpu.server import TransformersServer


class ServerAdapter(BaseRollout):
    """Calls, from the training worker, the server actor of the same rank."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        # There is one worker a replica, so a worker's rank is its replica's.
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._server: ActorHandle[TransformersServer] | None = None

    @property
    def is_leader_rank(self) -> bool:
        return True

    async def resume(self, tags: list[str]) -> None:
        """Wake the server up before (`weights`) or after (`kv_cache`) an update."""
        await self._handle().wake_up.remote(tags=tags)

    async def release(self) -> None:
        """Let the server drop its caches."""
        await self._handle().sleep.remote()

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        *,
        global_steps: int | None = None,
        peft_config: Any = None,
        **_: Any,
    ) -> None:
        """Send all weights through Ray's object store, as float32 arrays that the server maps without a copy.

        Raises:
            ConfigError: veRL asks for differences or LoRA adapters only.
        """
        if wire_format != "named_tensors" or peft_config is not None:
            raise ConfigError(
                "rollout.name=transformers takes full weights only: use checkpoint_engine.backend=naive, and "
                f"model.lora.merge=true with LoRA; got wire_format={wire_format!r}, peft_config={peft_config!r}"
            )
        arrays = {name: to_array(tensor) async for name, tensor in ensure_async_iterator(weights)}
        await self._handle().update_weights.remote(ray.put(arrays), global_steps)

    def _handle(self) -> ActorHandle[TransformersServer]:
        # The server starts after the training worker, so it is looked up at the first need.
        if self._server is None:
            self._server = ray.get_actor(server_name(self.replica_rank))
        return self._server
