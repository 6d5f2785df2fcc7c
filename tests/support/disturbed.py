"""The shipped expert in veRL's agent loop, disturbed once in the middle of an episode."""

import asyncio
import json

from omegaconf import OmegaConf

from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import EXPERT_PATH
from support.loop_harness import ROW, ScriptedEngine, make_loop, recipe

TASK = next(task for task in load_tasks("embedded") if task.task_id == "editor-write-hello")


class Disturbed(ScriptedEngine):
    """The expert's replies, anew in each attempt; in the first one, `disturb` is called before the second reply."""

    def __init__(self, tokenizer, replies, disturb):
        super().__init__(tokenizer, [])
        self.expert = replies
        self.disturb = disturb

    async def generate(self, *args, image_data, **kwargs):
        turn = len(image_data) - 1
        if turn == 1 and self.disturb is not None:
            disturb, self.disturb = self.disturb, None
            await asyncio.to_thread(disturb)
        self.replies = [self.expert[turn]]
        return await super().generate(*args, image_data=image_data, **kwargs)


async def play_session(policy, tokenizer, pool, environment, task, disturb, folder):
    """One session of veRL's agent loop on a pool; what the trainer gets of it. Episodes are recorded in `folder`."""
    expert = json.loads(EXPERT_PATH.read_text())[TASK.task_id]
    replies = [f"Thought: {turn['thought']}\nAction: {turn['action']}" for turn in expert]
    agent = {"max_steps": len(replies), "max_screenshots": len(replies), "trajectory_dir": str(folder)}
    config = OmegaConf.merge(recipe(agent, response_length=4096), {"environment": environment})
    info = {"index": 0, "task_id": task.task_id, "instruction": task.instruction, "spec": task.spec}
    loop = make_loop(policy, Disturbed(tokenizer, replies, disturb), pool, config)
    return await loop.run({}, **{**ROW, "extra_info": info})
