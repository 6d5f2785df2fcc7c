"""What the agent loop's tests stand on: the real loop and processor, a scripted engine, fake desktops."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from omegaconf import OmegaConf

pytest.importorskip("verl")  # a test module that imports this one is skipped

from verl.experimental.agent_loop.agent_loop import DictConfigWrap  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

from arpo_verl.environments.fake import FakeEnvironment, FakeScript  # noqa: E402
from arpo_verl.errors import DesktopError  # noqa: E402
from arpo_verl.plugin.agent_loop import GuiAgentLoop  # noqa: E402
from arpo_verl.types import Size  # noqa: E402

SCREEN = Size(640, 480)
# The fake's square lies at the top left, 120 pixels wide: (20, 20) of the 364x252 image is (35, 38) of the screen.
HIT = "Thought: I click it.\nAction: click(start_box='<|box_start|>(20,20)<|box_end|>')"
MISS = "Action: click(start_box='(300,200)')"
DONE = "Thought: Done.\nAction: finished()"


class ScriptedEngine:
    """Stands for veRL's `LLMServerClient`: writes the given replies, one a call, with log-probs -0.001, -0.002, ..."""

    def __init__(self, tokenizer, replies, *, end=True, log_probs=True, outputs=None):
        self.tokenizer = tokenizer
        self.replies = list(replies)
        self.end = end
        self.log_probs = log_probs
        self.outputs = outputs or {}
        self.calls = []
        self.written = []

    async def generate(self, request_id, *, prompt_ids, sampling_params, image_data=None, **kwargs):
        self.calls.append(
            {
                "request_id": request_id,
                "prompt_ids": list(prompt_ids),
                "images": list(image_data or []),
                **sampling_params,
            }
        )
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        token_ids = self.tokenizer.encode(reply, add_special_tokens=False)
        if self.end:
            token_ids.append(self.tokenizer.convert_tokens_to_ids("<|im_end|>"))
        token_ids = token_ids[: sampling_params["max_tokens"]]
        count = sum(len(written) for written, _ in self.written)
        log_probs = [-(count + i + 1) / 1000 for i in range(len(token_ids))]
        self.written.append((token_ids, log_probs))
        step = len(self.calls)
        output = {
            "token_ids": token_ids,
            "log_probs": log_probs if self.log_probs else None,
            "stop_reason": "completed",
            "extra_fields": {"global_steps": step, "min_global_steps": step, "max_global_steps": step},
        }
        return TokenOutput(**{**output, **self.outputs})


class AsyncDesktop:
    host = "here"

    def __init__(self, environment):
        self.environment = environment
        self.name = environment.name

    async def reset(self, task):
        return self.environment.reset(task)

    async def step(self, action):
        return self.environment.step(action)

    async def evaluate(self):
        return self.environment.evaluate()


class FakeSession:
    """Counts every attempt."""

    def __init__(self, pool, task_id):
        self.pool, self.task_id, self.attempts = pool, task_id, 0

    def lease(self):
        self.attempts += 1
        return self.pool.lease(self.task_id)

    async def count_faults(self):
        return self.attempts


class FakePool:
    """Leases a new fake desktop each time, made from the next script (the last one for ever), and keeps the books."""

    def __init__(self, *scripts, screen=SCREEN):
        self.scripts = list(scripts) or [FakeScript()]
        self.screen = screen
        self.desktops = []
        self.leased = 0
        self.faults = []
        self.dropped = []

    @asynccontextmanager
    async def lease(self, task_id):
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        environment = FakeEnvironment(script, self.screen)
        self.desktops.append(environment)
        self.leased += 1
        try:
            yield AsyncDesktop(environment)
        except DesktopError as error:
            self.faults.append(type(error).__name__)
            raise
        finally:
            self.leased -= 1

    def session(self, task_id):
        return FakeSession(self, task_id)

    async def report_drop(self, task_id):
        self.dropped.append(task_id)


def recipe(agent=None, *, prompt_length=512, response_length=1536, reward=None, data=None):
    return OmegaConf.create(
        {
            "gui_agent": {
                "max_steps": 4,
                "max_screenshots": 4,
                "max_reply_tokens": 64,
                "prompt": "compact",
                **(agent or {}),
            },
            "environment": {"provider": "fake", "max_attempts": 3, "retry_backoff_s": 0},
            "reward": {"custom_reward_function": reward or {"path": "pkg://arpo_verl.reward", "name": "compute_score"}},
            "data": data or {},
            "actor_rollout_ref": {
                "rollout": {
                    "prompt_length": prompt_length,
                    "response_length": response_length,
                    "full_determinism": False,
                }
            },
        }
    )


ROW = {
    "uid": "u-1",
    "session_id": 2,
    "global_steps": 12,
    "data_source": "embedded",
    "reward_model": {"ground_truth": "", "style": "rule"},
    "raw_prompt": [],
    "extra_info": {
        "index": 0,
        "task_id": "click-it",
        "instruction": "Click the red square.",
        "spec": {"id": "click-it"},
    },
}


def make_loop(policy, engine, pool, config=None):
    tokenizer, processor = policy
    config = config if config is not None else recipe()
    return GuiAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=engine,
        tokenizer=tokenizer,
        processor=processor,
        hf_model_type=processor.config.model_type,
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
        tools=None,
        pool=pool,
    )


def play(policy, engine, pool=None, config=None, row=ROW):
    """One episode through the loop's own `run`."""

    async def run():
        return await make_loop(policy, engine, pool if pool is not None else FakePool(), config).run(
            {"temperature": 1.0, "logprobs": True}, **row
        )

    return asyncio.run(run())
