"""Rows that carry screenshots in the place of pixel values, and are made beside the worker's event loop:
`rollout.agent.agent_loop_manager_class` of veRL.

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
from typing import Any

import ray
import torch
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from arpo_verl.plugin.model_inputs import lazy_inputs
from arpo_verl.plugin.rollout_output import SCREENSHOTS
from arpo_verl.plugin.settings import connect_pool, load_settings

_Worker: Any = AgentLoopWorkerTQ.__ray_actor_class__  # type: ignore[attr-defined]  # the class under Ray's actor


@ray.remote
class GuiAgentLoopWorker(_Worker):
    """veRL's rollout worker, but for the pixel values of the agent loop `gui_agent`, and for where rows are made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.rollout_config.agent.default_agent_loop == "gui_agent":
            # What its episodes share, and the modules behind it: made by the first one, all the others would wait.
            load_settings(self.config)
            connect_pool(self.config)
        # A full collection looks at each object of all modules: half a second in which no episode has its turn.
        gc.collect()
        gc.freeze()

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
    """veRL's manager, with workers of `GuiAgentLoopWorker`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # veRL's
        self.agent_loop_workers_class = GuiAgentLoopWorker
