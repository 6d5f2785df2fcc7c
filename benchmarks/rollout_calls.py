"""Loaded into the stock trainer's processes by VERL_USE_EXTERNAL_MODULES: notes what the rollout engine is asked.

A line of JSON for each reply, and one for each prompt whose images vLLM looks up in its cache. Episodes of the
validation before training are kept going for `gui_agent.max_steps` turns: what the engine wrote is replaced by a click
on the empty background, elsewhere at each turn and in each session of a task, so that only first screenshots are alike.
"""

from __future__ import annotations

import json
import os
import time
from functools import wraps
from pathlib import Path
from typing import Any

import wrapt

FOLDER = Path(os.environ["BENCHMARK_CALLS"])
BEFORE_TRAINING = 0
"""veRL's `global_steps` then."""
KEPT_GOING = "kept-going"


def note(**fields: Any) -> None:
    """Append a line to this process's own file."""
    with (FOLDER / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), **fields}) + "\n")


def keep_going(agent_loop: Any) -> None:
    """Have the agent loop's engine put a click in the place of each reply of an episode before training."""
    engine = agent_loop._Engine
    begin, generate = engine.__post_init__, engine.generate

    @wraps(begin)
    def named(self: Any) -> None:
        begin(self)
        if int(self.row["global_steps"]) == BEFORE_TRAINING:
            self.request_id = f"{KEPT_GOING}-{self.request_id}"

    @wraps(generate)
    async def kept_going(self: Any, prompt_ids: list[int], images: list[Any], max_tokens: int) -> Any:
        generated = await generate(self, prompt_ids, images, max_tokens)
        if not self.request_id.startswith(KEPT_GOING):
            return generated
        x, y = 4 + 8 * len(images), 248 - 6 * int(self.row["session_id"])
        click = f"Action: click(start_box='({x},{y})')<|im_end|>"
        return agent_loop.Generated(tuple(self.loop.tokenizer.encode(click, add_special_tokens=False)), None)

    engine.__post_init__, engine.generate = named, kept_going


def note_replies(llm_server: Any) -> None:
    """Have veRL's client note each reply: tokens of the prompt, how many of them were cached, tokens written."""
    client = llm_server.LLMServerClient
    generate = client.generate

    @wraps(generate)
    async def noted(self: Any, request_id: str, *, prompt_ids: list[int], **kwargs: Any) -> Any:
        begin = time.time()
        output = await generate(self, request_id, prompt_ids=prompt_ids, **kwargs)
        fields = {
            "begin": begin,
            "session": request_id,
            "turn": len(kwargs["image_data"]) - 1,
            "prompt_tokens": len(prompt_ids),
        }
        note(**fields, cached_tokens=output.extra_fields["num_cached_tokens"], tokens=len(output.token_ids))
        return output

    client.generate = noted


def note_images(processor: Any) -> None:
    """Have vLLM's processor note how many images a prompt has, and how many of them it had not in its cache."""
    upstream = processor.BaseMultiModalProcessor
    look_up = upstream._get_cache_missing_items

    @wraps(look_up)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        cached, missing = look_up(self, *args, **kwargs)
        if "image" in cached:
            note(images=len(cached["image"]), processed=cached["image"].count(False))
        return cached, missing

    upstream._get_cache_missing_items = noted


wrapt.register_post_import_hook(keep_going, "arpo_verl.plugin.agent_loop")
wrapt.register_post_import_hook(note_replies, "verl.workers.rollout.llm_server")
wrapt.register_post_import_hook(note_images, "vllm.multimodal.processing.processor")
