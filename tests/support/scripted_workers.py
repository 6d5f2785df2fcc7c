"""veRL's manager and workers as ours are, with episodes that wait for the test's orders."""

import asyncio
import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from ray.exceptions import RayActorError
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from arpo_verl.plugin.loop_manager import GuiAgentLoopManager, GuiAgentLoopWorker
from arpo_verl.plugin.prompts import LostSessions
from arpo_verl.plugin.settings import connect_pool
from arpo_verl.plugin.trainer_state import trainer_state

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers do not find the tests' modules

END, FAIL = "end", "fail"


@ray.remote(num_cpus=0)
class Stage:
    """Where the episodes of all workers meet the test."""

    def __init__(self):
        self._begun = defaultdict(list)
        self._told = defaultdict(asyncio.Future)
        self._changed = asyncio.Condition()

    async def enter(self, episode, pid):
        """An episode begins in process `pid`; returns what it is to do."""
        async with self._changed:
            self._begun[episode].append(pid)
            self._changed.notify_all()
        return await asyncio.shield(self._told[episode])

    async def begun(self, episode):
        """Wait until the episode has begun; returns the processes."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._begun[episode])
        return self._begun[episode]

    async def tell(self, episodes, what):
        """Have these episodes do it, now or when they begin."""
        for episode in episodes:
            self._told[episode].set_result(what)


class ScriptedWorker(GuiAgentLoopWorker.__ray_actor_class__):
    def __init__(self, config, stage, *_):
        self.config, self.rollout_config, self.stage = config, config.actor_rollout_ref.rollout, stage
        tq.init()
        self.background_tasks = set()
        self.lost_sessions = LostSessions(connect_pool(config) if self._has_desktops() else None)

    def pid(self):
        return os.getpid()

    def _has_desktops(self):
        return self.rollout_config.agent.default_agent_loop == "gui_agent"

    async def _play_session(self, sampling_params, trajectory, trace, session_id, uid, **row):
        if not self._has_desktops():
            return await self._play(f"{uid}_{session_id}", trajectory["validate"], row)
        async with connect_pool(self.config).lease(row["extra_info"]["task_id"]):
            await self._play(f"{uid}_{session_id}", trajectory["validate"], row)

    async def _play(self, episode, validates, row):
        what = await self.stage.enter.remote(episode, os.getpid())
        partition_id = "val" if validates else "train"
        if what == FAIL:
            raise ValueError("told to fail")
        await put_row(episode, partition_id, row)


async def put_row(episode, partition_id, row):
    """As veRL puts a session's row."""
    outcome = {"task_id": row["extra_info"]["task_id"], "success": 1.0, "format_error": False}
    outcome |= {"stop_reason": "finished", "num_turns": 1}
    fields = {"extra_fields": outcome, "rm_scores": torch.tensor([0.0, 1.0]), "uid": episode.rsplit("_", 1)[0]}
    tag = {"status": "success", "global_steps": 1, "seq_len": 4, "prompt_len": 2, "response_len": 2}
    rows = list_of_dict_to_tensordict([fields])
    await tq.async_kv_batch_put(keys=[f"{episode}_0"], fields=rows, tags=[tag], partition_id=partition_id)


class ScriptedManager(GuiAgentLoopManager):
    def __init__(self, config, stage, python):
        super().__init__(config, stage)
        self.agent_loop_workers_class = ray.remote(runtime_env={"py_executable": python})(ScriptedWorker)


class Play:
    """A manager with its workers, and the part of the trainer that hands out prompts.

    Args:
        python: starts the workers' processes.
        mode: the trainer's.
        sections: of the recipe.
    """

    def __init__(self, python, num_workers=2, mode="sync", agent_loop="scripted", **sections):
        rollout = {"n": 2, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "calculate_log_probs": True}
        rollout["val_kwargs"] = {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
        rollout["agent"] = {"num_workers": num_workers, "default_agent_loop": agent_loop}
        config = {"actor_rollout_ref": {"rollout": rollout, "model": {}}, **sections}
        config |= {"trainer": {"v1": {"trainer_mode": mode}}, "data": {"train_batch_size": 2}}
        self.stage = Stage.remote()
        self.trainer_mode, self.global_steps = mode, 1
        self.manager = self.agent_loop_manager = ScriptedManager.create(OmegaConf.create(config), self.stage, python)
        self.state = trainer_state(self.manager.config)
        self.num_drawn = 0
        self.columns = ["uid", "raw_prompt", "extra_info", "index", "data_source"]

    def pids(self):
        """Of the workers' processes, once they run."""
        return ray.get([worker.pid.remote() for worker in self.manager.agent_loop_workers])

    def draw(self, num_prompts, partition_id="train"):
        """Hand out so many prompts, as the trainer does; returns their uids."""
        uids = [f"u{self.num_drawn + number}" for number in range(num_prompts)]
        self.num_drawn += num_prompts
        rows = [{"task_id": f"task-{uid}", "index": number} for number, uid in enumerate(uids)]
        columns = {"uid": uids, "raw_prompt": [[{"role": "user", "content": "do it"}]] * num_prompts}
        columns |= {"extra_info": rows, "index": list(range(num_prompts)), "data_source": ["test"] * num_prompts}
        batch = tu.get_tensordict({name: _objects(columns[name]) for name in self.columns})
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        if partition_id == "train":
            PPOTrainer._submit_batch_to_rollout(self, batch)
        else:
            tu.assign_non_tensor_data(batch, "validate", True)
            tags = [{"is_prompt": True, "status": "pending", "global_steps": self.global_steps} for _ in uids]
            tq.kv_batch_put(keys=uids, partition_id=partition_id, tags=tags)
            self.manager.generate_sequences(batch)
        return uids

    def refill(self, num_prompts):
        """As the sampler asks for more; all of their episodes end well."""
        uids = self.draw(num_prompts)
        self.tell([f"{uid}_{session}" for uid in uids for session in range(2)])

    def begun(self, episode):
        return ray.get(self.stage.begun.remote(episode), timeout=120)

    def tell(self, episodes, what=END):
        ray.get(self.stage.tell.remote(list(episodes), what))

    def close(self):
        """End the workers before the stage: an episode that loses its stage writes that into the queue of the next."""
        for worker in self.manager.agent_loop_workers:
            with suppress(RayActorError, ProcessLookupError):
                os.kill(ray.get(worker.pid.remote()), signal.SIGKILL)
            ray.kill(worker)
        ray.kill(self.stage)


def _objects(column):
    array = np.empty(len(column), dtype=object)
    array[:] = column
    return array
