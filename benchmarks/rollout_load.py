"""Both rollout engines side by side, without a trainer: veRL's own servers, the same conversations for each."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from PIL import Image
from trainer_run import ROOT

from arpo_verl.types import Size

ENGINES: Mapping[str, tuple[str, ...]] = {"transformers": (), "vllm": ("+engine=vllm_cpu",)}
SCREEN = Size(640, 480)
REPLY_TOKENS = 32


@dataclass(frozen=True)
class Load:
    """Conversations at once, and turns of each: a screenshot, and a reply of `REPLY_TOKENS` tokens."""

    sessions: int
    turns: int


async def measure_engines(policy: Path, load: Load, rounds: int) -> dict[str, list[float]]:
    """Tokens that each engine writes a second, its prompts and images included: a value a round, after one to warm up.

    No screenshot comes twice but within its own conversation.
    """
    os.environ["VERL_PLATFORM"] = "cpu"
    import ray
    from verl.utils.tokenizer import hf_tokenizer
    from verl.workers.rollout.llm_server import LLMServerManager

    from arpo_verl.plugin.policy_files import chat_tokenizer, load_processor

    processor = load_processor(policy)
    chat = chat_tokenizer(hf_tokenizer(str(policy)), processor, processor.config.model_type)
    ray.init(address="local", num_gpus=len(ENGINES), num_cpus=16, include_dashboard=False)
    try:
        clients = {}
        for number, (engine, options) in enumerate(ENGINES.items()):
            manager = await LLMServerManager.create(config=compose(policy, *options), start_rank=number)
            clients[engine] = manager.get_client()
        rates: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for number in range(rounds + 1):
            for engine, client in clients.items():
                begin = time.perf_counter()
                sessions = [converse(client, chat, load.turns, (number, index)) for index in range(load.sessions)]
                tokens = sum(await asyncio.gather(*sessions))
                if number:
                    rates[engine].append(tokens / (time.perf_counter() - begin))
        return rates
    finally:
        ray.shutdown()


def compose(policy: Path, *options: str) -> Any:
    """The embedded recipe with servers of their own, which read the policy's weights."""
    from hydra import compose, initialize_config_dir

    rollout = "actor_rollout_ref.rollout"
    fixed = ["hydra.searchpath=[pkg://verl.trainer.config]", f"actor_rollout_ref.model.path={policy}"]
    fixed += [f"{rollout}.nnodes=1", f"{rollout}.n_gpus_per_node=1", f"{rollout}.load_format=auto"]
    with initialize_config_dir(str(ROOT / "recipes"), version_base=None):
        return compose("embedded", overrides=[*fixed, *options])


async def converse(client: Any, chat: Any, turns: int, seed: tuple[int, int]) -> int:
    """One conversation about screenshots of noise. Returns the tokens that were written."""
    from arpo_verl.rollout.prompts import build_messages

    generator = np.random.default_rng(seed)
    request_id, images = uuid4().hex, []
    token_ids = chat.prompt(build_messages(f"Task {seed}.", kind="compact"), SCREEN)
    params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True, "ignore_eos": True}
    written = 0
    for _ in range(turns):
        if images:
            token_ids = token_ids + chat.next_screenshot(token_ids[-1], SCREEN)
        blocks = generator.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        images.append(Image.fromarray(blocks).resize(SCREEN, Image.Resampling.NEAREST))
        output = await client.generate(
            request_id,
            prompt_ids=token_ids,
            sampling_params={**params, "max_tokens": REPLY_TOKENS},
            image_data=list(images),
        )
        token_ids = token_ids + list(output.token_ids)
        written += len(output.token_ids)
    return written
