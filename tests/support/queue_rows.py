"""Rows in a real TransferQueue, put there by veRL's own post-processing of an agent loop's output."""

import asyncio
from types import SimpleNamespace

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.plugin.loop_manager import GuiAgentLoopWorker
from arpo_verl.plugin.queue import plain
from arpo_verl.plugin.rows import GuiAgentOutput
from support.pictures import screenshot

# What the trajectory determines in a row; the rest of a row is the prompt's.
TRAJECTORY_FIELDS = ["prompts", "responses", "input_ids", "response_mask", "loss_mask", "position_ids"]
TRAJECTORY_FIELDS += ["rollout_log_probs", "rm_scores", "num_turns", "multi_modal_inputs", "extra_fields"]
TRAJECTORY_FIELDS += ["screenshots"]
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


class Rollouts:
    """Ends rollouts of prompts as a rollout worker would, in this process."""

    def __init__(self, tokenizer, processor):
        # The worker class under Ray's actor, without the worker's start: only what its post-processing reads.
        self.worker = object.__new__(GuiAgentLoopWorker.__ray_actor_class__)
        self.worker.tokenizer, self.worker.processor = tokenizer, processor
        self.worker.mm_processor_kwargs = {}
        self.worker.reward_loop_worker_handles = None
        self.worker.distillation_enabled = False

    def _ids(self, text, images):
        inputs = self.worker.processor(text=[text], images=images or None, return_tensors="pt")
        return inputs["input_ids"][0].tolist()

    def output(self, task_id, success, seed, step=1, turns=2, format_error=0.0, stop_reason="finished"):
        """An episode of `turns` replies with a screenshot before each, its tokens and log-probs drawn from `seed`."""
        rng = np.random.default_rng(seed)
        screenshots = [screenshot(seed * 100 + turn) for turn in range(turns)]
        images = [decode_screenshot(shot) for shot in screenshots]
        prompt_ids = self._ids(f"<|im_start|>user\n{task_id}{IMAGE}<|im_end|>\n<|im_start|>assistant\n", images[:1])
        response_ids, mask = [], []
        for turn in range(turns):
            if turn:
                between = self._ids(f"\n<|im_start|>user\n{IMAGE}<|im_end|>\n<|im_start|>assistant\n", [images[turn]])
                response_ids, mask = response_ids + between, mask + [0] * len(between)
            reply = self._ids(f"Thought: {seed}.\nAction: wait()<|im_end|>", None) + [int(rng.integers(50, 90))]
            response_ids, mask = response_ids + reply, mask + [1] * len(reply)
        return GuiAgentOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            response_mask=mask,
            response_logprobs=rng.normal(-1, 1, len(response_ids)).astype(np.float32).tolist(),
            multi_modal_data={"images": images, "screenshots": screenshots},
            mm_processor_kwargs=self.worker._get_mm_processor_kwargs(),
            reward_score=success - 0.5 * format_error,
            num_turns=2 * turns,
            metrics=AgentLoopMetrics(generate_sequences=float(seed)),
            extra_fields={
                "task_id": task_id,
                "success": success,
                "format_error": format_error,
                "stop_reason": stop_reason,
                "num_turns": turns,
                "reward_extra_info": {"success": success, "format_error": format_error},
                "min_global_steps": step - 1,
                "max_global_steps": step - 1,
            },
            screenshots=screenshots,
        )

    def rows(self, task_id, success, seed, step=1, turns=4, window=2):
        """As `output`, but seen through a window: each reply beyond it is a row of its own."""
        whole = self.output(task_id, success, seed, step, turns)
        images, rng = whole.multi_modal_data["images"], np.random.default_rng(seed + 1000)
        first = self.output(task_id, success, seed, step, window)
        fields = {"reward_score": whole.reward_score, "num_turns": whole.num_turns}
        rows = [first.model_copy(update={**fields, "extra_fields": dict(whole.extra_fields)})]
        for turn in range(window, turns):
            start = turn + 1 - window
            text = "".join(f"<|im_start|>user\n{IMAGE}<|im_end|>\n<|im_start|>assistant\n{turn}" for _ in range(window))
            prompt_ids = self._ids(f"{task_id} {start} earlier{text}", images[start : turn + 1])
            reply = self._ids(f"Thought: {seed} {turn}.<|im_end|>", None) + [int(rng.integers(50, 90))]
            changes = {
                "prompt_ids": prompt_ids,
                "response_ids": reply,
                "response_mask": [1] * len(reply),
                "response_logprobs": rng.normal(-1, 1, len(reply)).astype(np.float32).tolist(),
                "multi_modal_data": {
                    "images": images[start : turn + 1],
                    "screenshots": whole.screenshots[start : turn + 1],
                },
                "extra_fields": {**whole.extra_fields, "first_screenshot": start},
                "screenshots": whole.screenshots[turn : turn + 1],
            }
            rows.append(whole.model_copy(update=changes))
        return rows

    def put(self, uid, outputs, step=1, partition_id="train", **extra_info):
        """Put a finished prompt with its sessions; `outputs` by session: a row or a list of them, or None for a session
        that failed. `extra_info` is what the dataset's row has beside task and instruction."""
        for session, output in enumerate(outputs):
            if output is None:
                continue
            any_row = output[0] if isinstance(output, list) else output
            task_id = any_row.extra_fields["task_id"]
            prompt = {
                "uid": uid,
                "session_id": session,
                "global_steps": step,
                "raw_prompt": [{"role": "user", "content": task_id}],
                "data_source": "osworld",
                "extra_info": {"task_id": task_id, "instruction": "Wait, please.", **extra_info},
                "reward_model": {"ground_truth": ""},
            }
            asyncio.run(self.worker._agent_loop_postprocess(output, partition_id == "val", **prompt))
        status = "failure" if None in outputs else "finished"
        tag = {"is_prompt": True, "status": status, "global_steps": step}
        tq.kv_batch_put(keys=[uid], partition_id=partition_id, tags=[tag])


def read(tq, key, partition_id="train"):
    """All fields of one row, as the trainer's workers get them."""
    data = tq.kv_batch_get(keys=[key], partition_id=partition_id)
    return {name: plain(data[name][0]) for name in data.keys()}


def equal(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return a == b


def score(tq, batch, shifts=None):
    """Put old log-probs into the queue, as if the actor had scored the rows.

    Args:
        shifts: by key, how much likelier each token has become since it was written; the same likelihood without.
    """
    data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["rollout_log_probs"])
    rows = zip(batch.keys, data["rollout_log_probs"], strict=True)
    scored = torch.nested.as_nested_tensor([row + (shifts or {}).get(key, 0) for key, row in rows], layout=torch.jagged)
    fields = TensorDict({"old_log_probs": scored, "entropy": scored.exp()}, batch_size=len(batch))
    tq.kv_batch_put(batch.keys, batch.partition_id, fields=fields)


def advantages_of(tq, batch, config, shifts=None):
    """What the trainer's own `_compute_advantage` leaves in the queue for the actor: one number a trajectory."""
    score(tq, batch, shifts)
    PPOTrainer._compute_advantage(SimpleNamespace(config=config), batch, metrics={})
    data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["advantages", "response_mask"])
    rows = zip(batch.keys, data["advantages"], data["response_mask"], strict=True)
    values = {key: {round(a, 5) for a in advantages[mask.bool()].tolist()} for key, advantages, mask in rows}
    return {key: value.pop() for key, value in values.items() if len(value) == 1}  # padding rows have none


def replayed_keys(batch):
    return [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("replayed")]
