"""Provide veRL's `rollout.agent.agent_loop_manager_class`. It knows how each prompt ends, its rows carry screenshots
instead of pixel values, and rows are made beside the worker's event loop.

veRL's worker makes a row's pixel values when it puts the row into TransferQueue, and only its class can change that
(veRL 0.9.1, `trainer/ppo/v1/agent_loop_tq.py: AgentLoopWorkerTQ._agent_loop_postprocess`). The plugin point is the
manager's class, in all modes of the V1 trainer: `trainer/main_ppo.py: TaskRunnerV1.init_agent_loop_manager`. If you do
not set it, rows carry pixel values, as veRL's own do.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from typing import Any

import ray
import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from arpo_verl.engines.upstream_patches import EQUAL_LENGTHS, IMAGE_CACHES, ROLLOUT_CORRECTION
from arpo_verl.engines.vllm.images import OPTION as IMAGE_CACHE_OPTION
from arpo_verl.lib.post_import import require_registered
from arpo_verl.plugin.model_inputs import lazy_inputs
from arpo_verl.plugin.prompts import EndedPrompt, FruitlessPrompts, LostSessions, Prompts
from arpo_verl.plugin.queue import TensorDict, plain
from arpo_verl.plugin.rows import SCREENSHOTS
from arpo_verl.plugin.settings import connect_pool, load_settings
from arpo_verl.plugin.trainer_state import trainer_state
from arpo_verl.versions import require_verl

_Worker: Any = AgentLoopWorkerTQ.__ray_actor_class__  # type: ignore[attr-defined]  # the class under Ray's actor


@ray.remote
class GuiAgentLoopWorker(_Worker):
    """veRL's rollout worker, except for the pixel values of the agent loop `gui_agent` and where rows are made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pool = None
        if self.rollout_config.agent.default_agent_loop == "gui_agent":
            # Load now what all episodes share. If the first episode loaded it, all others would wait.
            load_settings(self.config)
            pool = connect_pool(self.config)
        self.lost_sessions = LostSessions(pool)
        # A full collection visits every object of all modules: half a second in which no episode proceeds.
        gc.collect()
        gc.freeze()

    async def play(self, prompt: TensorDict) -> EndedPrompt:
        """Play one prompt like veRL's `generate_sequences`, but return only when it is over."""
        others = set(self.background_tasks)
        uid = str(plain(prompt["uid"][0]))
        validates = bool(plain(prompt["validate"])) if "validate" in prompt else False
        await self.generate_sequences(prompt)
        await asyncio.gather(*(self.background_tasks - others))
        return self.lost_sessions.take(uid, validates)

    async def _run_agent_loop(self, *args: Any, **kwargs: Any) -> Any:
        task_id = str((kwargs.get("extra_info") or {}).get("task_id", ""))
        async with self.lost_sessions.session(kwargs["uid"], task_id):
            return await self._play_session(*args, **kwargs)

    async def _play_session(self, *args: Any, **kwargs: Any) -> Any:
        return await super()._run_agent_loop(*args, **kwargs)

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: bool, **kwargs: Any
    ) -> None:
        # A row of 40,000 tokens takes 0.1 s, and an episode with a window has tens. Meanwhile all others would wait.
        making = super()._agent_loop_postprocess(output, validate, **kwargs)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(making, _rows_loop()))

    def _compute_multi_modal_inputs(self, output: AgentLoopOutput, input_ids: torch.Tensor) -> dict[str, Any]:
        shown = (output.multi_modal_data or {}).get(SCREENSHOTS)
        if shown is None:  # from another agent loop
            stock: dict[str, Any] = super()._compute_multi_modal_inputs(output, input_ids)
            return stock
        own = output.mm_processor_kwargs
        return lazy_inputs(shown, input_ids, self.processor, self._get_mm_processor_kwargs() if own is None else own)


@functools.cache
def _rows_loop() -> asyncio.AbstractEventLoop:
    """Return a second event loop, in a thread of its own. TransferQueue's client keeps sockets for each loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="arpo_verl-rows").start()
    return loop


class GuiAgentLoopManager(AgentLoopManagerTQ):
    """veRL's manager with `GuiAgentLoopWorker`s, which knows how each prompt ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # veRL's
        self.agent_loop_workers_class = GuiAgentLoopWorker

    async def _init_agent_loop_workers(self) -> None:
        require_verl()
        for patch in (ROLLOUT_CORRECTION, EQUAL_LENGTHS):
            patch.check()
        require_registered("verl.")
        if OmegaConf.select(self.config, IMAGE_CACHE_OPTION) == "shm":
            IMAGE_CACHES.check()  # veRL's classes for vLLM import all of it here too
        state = trainer_state(self.config)
        state.watch.start()
        state.before_rollouts()
        if self.rollout_config.agent.default_agent_loop == "gui_agent":
            connect_pool(self.config)  # a pool that a worker made would die with the worker
        await super()._init_agent_loop_workers()  # type: ignore[no-untyped-call]  # veRL's
        # If a group lost some of its sessions, `sync` trains on the rest, and the other modes draw another group.
        fruitless = FruitlessPrompts(
            self.config.data.train_batch_size, keeps_partial=self.config.trainer.v1.trainer_mode == "sync"
        )
        self.prompts = Prompts(self.agent_loop_workers, fruitless, state.watch)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start playing the prompts, each on the worker with the fewest, and return at once, as veRL's manager does."""
        self.prompts.play(prompts)
