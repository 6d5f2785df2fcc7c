"""Send weights from training workers to separate rollout workers, without a GPU.

    actor_rollout_ref.rollout.checkpoint_engine.backend: ray

veRL's own engines for `trainer_mode: separate_async` (nccl, nixl, ...) need a GPU. Each rollout worker has an inbox, a
Ray queue; the first training worker puts all weights into Ray's object store, and a reference into every inbox.

Importing this module registers it with veRL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np
import ray
import torch
from ray.util.queue import Queue
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

from arpo_verl.engines.cpu.model import to_array


@CheckpointEngineRegistry.register("ray")
class RayCheckpointEngine(CheckpointEngine):
    """Implements veRL's checkpoint engine interface, on the sending and on the receiving side.

    Args:
        bucket_size: veRL passes it, but Ray's object store takes all weights at once.
        is_master: whether this is the training worker that sends.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master
        self._inbox: Queue | None = None
        self._outboxes: list[Queue] = []

    def prepare(self) -> dict[str, Any]:
        """Make the inbox once, and return it."""
        if self._inbox is None and not self._is_master:
            self._inbox = Queue(actor_options={"num_cpus": 0})
        return {"inbox": self._inbox}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Give every training worker the inboxes of all rollout workers, which send nothing themselves."""
        inboxes = [values["inbox"] for values in metadata[actor_wg_world_size:]]
        return {"outboxes": [inboxes] * actor_wg_world_size}, {"outboxes": [[]] * rollout_world_size}

    def init_process_group(self, outboxes: list[Queue]) -> None:  # type: ignore[override]  # what `build_topology` said
        self._outboxes = outboxes

    def finalize(self) -> None:
        """Do nothing: inboxes stay for the next update."""

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, Any]:
        """Put all weights into every inbox. Every training worker iterates over them, since FSDP gathers meanwhile."""
        arrays: dict[str, np.ndarray] = {}
        async for name, tensor in ensure_async_iterator(weights):
            if self._is_master:
                arrays[name] = to_array(tensor)
        if self._is_master:
            reference = ray.put(arrays)
            for outbox in self._outboxes:
                await outbox.put_async([reference])  # in a list, so that Ray hands it on unread
        return {}

    async def receive_weights(  # type: ignore[override]  # upstream's has no yield, so it reads as a coroutine
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield the weights of the current update."""
        assert self._inbox is not None, "veRL prepares an engine before it receives"
        (reference,) = await self._inbox.get_async()
        for name, array in (await reference).items():
            # A copy: arrays out of Ray's object store cannot be written to.
            yield name, torch.from_numpy(array.copy())
