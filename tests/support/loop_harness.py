"""What the agent loop's tests stand on: the real loop and processor, a scripted engine, fake desktops."""

import asyncio

import pytest
from omegaconf import OmegaConf

pytest.importorskip("verl")  # a test module that imports this one is skipped

from verl.experimental.agent_loop.agent_loop import DictConfigWrap  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

from arpo_verl.plugin.agent_loop import GuiAgentLoop  # noqa: E402
from support.fake_pool import DONE, HIT, MISS, SCREEN, AsyncDesktop, FakePool  # noqa: E402, F401


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
        versions = {"global_steps": step, "min_global_steps": step, "max_global_steps": step}
        output = {
            "token_ids": token_ids,
            "log_probs": log_probs if self.log_probs else None,
            "stop_reason": "completed",
            "extra_fields": {**versions, "spec_num_draft_tokens": 3},
        }
        return TokenOutput(**{**output, **self.outputs})


def recipe(agent=None, *, prompt_length=512, response_length=1536, max_model_len=None, reward=None, data=None):
    return OmegaConf.create(
        {
            "gui_agent": {
                "max_steps": 4,
                "max_screenshots": 4,
                "max_reply_tokens": 64,
                "model_family": "small",
                **(agent or {}),
            },
            "environment": {"provider": "fake", "max_attempts": 3, "retry_backoff_s": 0},
            "reward": {"custom_reward_function": reward or {"path": "pkg://arpo_verl.reward", "name": "compute_score"}},
            "data": data or {},
            "actor_rollout_ref": {
                "rollout": {
                    "prompt_length": prompt_length,
                    "response_length": response_length,
                    "max_model_len": max_model_len,
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
