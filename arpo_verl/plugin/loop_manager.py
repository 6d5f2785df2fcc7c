"""`rollout.agent.agent_loop_manager_class` of veRL: rollout workers that may die, rows that carry screenshots in the
place of pixel values and are made beside the worker's event loop.

veRL's worker has the image processor make a row's pixel values when it puts the row into TransferQueue, and only its
class decides that (veRL 0.9.1, `trainer/ppo/v1/agent_loop_tq.py: AgentLoopWorkerTQ._agent_loop_postprocess`). The
manager's class is the plugin point, of the V1 trainer in all of its modes: `trainer/main_ppo.py:
TaskRunnerV1.init_agent_loop_manager`. Where it is not set, rows carry pixel values, as veRL's own.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import ray
import torch
from ray.actor import ActorHandle
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from arpo_verl.plugin.engines import EngineClient, watched
from arpo_verl.plugin.lost_prompts import LostPrompts, LostSessions, read_prompts
from arpo_verl.plugin.model_inputs import lazy_inputs
from arpo_verl.plugin.queue import TensorDict, plain, set_value
from arpo_verl.plugin.rollout_workers import FruitlessPrompts, RolloutWorkers
from arpo_verl.plugin.rows import SCREENSHOTS
from arpo_verl.plugin.settings import connect_pool, load_settings
from arpo_verl.plugin.trainer_state import trainer_state
from arpo_verl.upstream_patches import ENGINE_CALLS, ROLLOUT_CORRECTION

_DONE = "__done__"
_Worker: Any = AgentLoopWorkerTQ.__ray_actor_class__  # type: ignore[attr-defined]  # the class under Ray's actor


@ray.remote
class GuiAgentLoopWorker(_Worker):
    """veRL's rollout worker, but for the pixel values of the agent loop `gui_agent`, and for where rows are made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pool = None
        if self.rollout_config.agent.default_agent_loop == "gui_agent":
            # What its episodes share, and the modules behind it: made by the first one, all the others would wait.
            load_settings(self.config)
            pool = connect_pool(self.config)
        self.lost_sessions = LostSessions(pool)
        # A full collection looks at each object of all modules: half a second in which no episode has its turn.
        gc.collect()
        gc.freeze()

    async def live(self) -> None:
        """Never returns: a caller that waits for it learns of this process's death."""
        await asyncio.Event().wait()

    async def play(self, prompt: TensorDict, done: Sequence[int] = ()) -> list[str]:
        """As veRL's `generate_sequences` of one prompt, but it returns when the prompt is over.

        Args:
            done: sessions that are not to be played: another worker did, before it died.

        Returns:
            Of each session that was lost, why.
        """
        others = set(self.background_tasks)
        uid = str(plain(prompt["uid"][0]))
        set_value(prompt, _DONE, tuple(done))  # veRL hands it to each session
        await self.generate_sequences(prompt)
        await asyncio.gather(*(self.background_tasks - others))
        return self.lost_sessions.take(uid)

    async def _run_agent_loop(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs["session_id"] in kwargs.pop(_DONE, ()):
            return None
        task_id = str((kwargs.get("extra_info") or {}).get("task_id", ""))
        async with self.lost_sessions.session(kwargs["uid"], task_id):
            return await self._play_session(*args, **kwargs)

    async def _play_session(self, *args: Any, **kwargs: Any) -> Any:
        return await super()._run_agent_loop(*args, **kwargs)

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: bool, **kwargs: Any
    ) -> None:
        # A row of 40,000 tokens takes 0.1 s, an episode of a window has tens: the other episodes would all wait.
        making = super()._agent_loop_postprocess(output, validate, **kwargs)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(making, _rows_loop()))

    def _compute_multi_modal_inputs(self, output: AgentLoopOutput, input_ids: torch.Tensor) -> dict[str, Any]:
        shown = (output.multi_modal_data or {}).get(SCREENSHOTS)
        if shown is None:  # another agent loop's
            stock: dict[str, Any] = super()._compute_multi_modal_inputs(output, input_ids)
            return stock
        own = output.mm_processor_kwargs
        return lazy_inputs(shown, input_ids, self.processor, self._get_mm_processor_kwargs() if own is None else own)


@functools.cache
def _rows_loop() -> asyncio.AbstractEventLoop:
    """A second event loop of this process, in a thread of its own. TransferQueue's client has sockets for each."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="arpo_verl-rows").start()
    return loop


class GuiAgentLoopManager(AgentLoopManagerTQ):
    """veRL's manager, with workers of `GuiAgentLoopWorker`, which are replaced when they die, and a client of rollout
    engines that may fail."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # veRL's
        self.agent_loop_workers_class = GuiAgentLoopWorker
        self.llm_client = watched(self.llm_client)

    async def _init_agent_loop_workers(self) -> None:
        for patch in (ROLLOUT_CORRECTION, ENGINE_CALLS):
            patch.check()
        lost_prompts = LostPrompts.of_config(self.config, self._watch_engines())
        await super()._init_agent_loop_workers()  # type: ignore[no-untyped-call]  # veRL's
        # Of a group that lost some of its sessions `sync` trains on the rest; the other modes draw another.
        fruitless = FruitlessPrompts(
            self.config.data.train_batch_size, keeps_partial=self.config.trainer.v1.trainer_mode == "sync"
        )
        fault = trainer_state(self.config).fault
        fault.listen()
        self.workers = RolloutWorkers(self.agent_loop_workers, self._start_worker, lost_prompts, fruitless, fault)

    def _watch_engines(self) -> Any:
        """Returns the router that remembers lost engines; None where the recipe has another."""
        if not isinstance(self.llm_client, EngineClient):
            return None
        router = self.llm_client._load_balancer
        if self.rollout_config.get("full_determinism", False):
            ray.get(router.route_by_hash.remote())
        engines = trainer_state(self.config).engines
        engines.watch(router, load_settings(self.config).agent.engine_timeout_s, self.config.trainer)
        return router

    def _start_worker(self) -> ActorHandle[Any]:
        """As veRL starts one, but on any node with room: the dead one's may be the reason."""
        worker_class: Any = self.agent_loop_workers_class
        return worker_class.options(name=f"agent_loop_worker_{uuid4().hex}", scheduling_strategy="SPREAD").remote(
            self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles
        )

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Have the prompts played, each by the worker that has fewest; returns at once, as veRL's.

        Raises:
            RolloutWorkerError: the workers die again and again.
            EngineLostError: a rollout engine is lost, and the step in which that happened is over.
            SessionsLostError: no batch can be put together any more.
        """
        self.workers.play(list(read_prompts(prompts, self.rollout_config)))
