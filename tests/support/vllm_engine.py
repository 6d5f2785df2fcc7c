"""A real engine of vLLM's, disturbed: `python vllm_engine.py POLICY UPDATES`, by the Python of `make vllm`.

Requests show drawn sequences of pictures while the weights change so many times, as in the asynchronous modes; some are
aborted at drawn moments. Each answer is compared with the one that the same pictures got from a quiet engine with the
same weights. Prints what it found as one line of JSON, and then asks on until somebody kills one of its processes.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import random
import sys
from collections import Counter
from importlib.metadata import version
from typing import Any

import numpy as np
import psutil
import verl  # noqa: F401  # and with it what a CPU needs
from PIL import Image

os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # `scale` goes to the worker

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from arpo_verl.lib.images import LazyImage, content_id
from arpo_verl.types import Size
from arpo_verl.versions import OWN_CACHES, is_older

CACHE = "shm" if is_older(version("vllm"), OWN_CACHES) else "lru"
"""Ours, where it takes the place of vLLM's."""
SIDE = 112
PICTURES, SEQUENCES, REQUESTS = 8, 10, 6
SAME = 1e-3
"""Largest difference of two answers' log-probs."""


def scale(worker: Any, factor: float) -> None:
    """Weights that make other answers; a power of two is undone without a trace."""
    for parameter in worker.model_runner.model.visual.merger.parameters():
        parameter.data.mul_(factor)


class Player:
    def __init__(self, policy: str) -> None:
        self.engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=policy,
                dtype="float32",
                enforce_eager=True,
                distributed_executor_backend="mp",
                max_model_len=512,
                max_num_seqs=2,  # others wait, and may be aborted before they are scheduled
                max_num_batched_tokens=512,
                kv_cache_memory_bytes=64 << 20,
                block_size=32,
                limit_mm_per_prompt={"image": 4, "video": 0},
                mm_processor_cache_type=CACHE,
                mm_processor_cache_gb=1,
                worker_extension_cls="verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension",  # as veRL
            )
        )
        self.random = random.Random(0)
        noise = np.random.default_rng(0)
        self.files = [self._file(noise.integers(0, 255, (8, 8, 3), dtype=np.uint8)) for _ in range(PICTURES)]
        self.read: Counter[int] = Counter()
        shown = [tuple(self.random.sample(range(PICTURES), 1 + number % 4)) for number in range(3 * SEQUENCES)]
        self.sequences = list(dict.fromkeys(shown))[:SEQUENCES]
        self.expected: dict[tuple[bool, tuple[int, ...]], dict[int, float]] = {}
        self.is_scaled = False
        self.names = map(str, itertools.count())
        self.found: Counter[str] = Counter()

    def _file(self, pixels: Any) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.NEAREST).save(buffer, "PNG")
        return buffer.getvalue()

    def _picture(self, number: int) -> LazyImage:
        def read() -> bytes:
            self.read[number] += 1
            return self.files[number]

        return LazyImage(Size(SIDE, SIDE), content_id(self.files[number]), read)

    async def ask(self, shown: tuple[int, ...]) -> dict[int, float] | None:
        """The most likely first tokens with their log-probs; None where it was aborted before."""
        tokenizer = self.engine.get_tokenizer()
        text = "<|im_start|>" + "<|vision_start|><|image_pad|><|vision_end|>" * len(shown) + "<|im_end|>"
        prompt = {
            "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False),
            "multi_modal_data": {"image": [self._picture(number) for number in shown]},
        }
        sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=10)
        async for output in self.engine.generate(prompt, sampling, next(self.names)):
            last = output
        first = last.outputs[0].logprobs if last.outputs else None
        return {token: each.logprob for token, each in first[0].items()} if first else None

    async def learn(self) -> None:
        """What each sequence is answered in quiet."""
        for shown in self.sequences:
            answer = await self.ask(shown)
            assert answer is not None
            self.expected[self.is_scaled, shown] = answer

    async def request(self) -> None:
        shown, weights = self.random.choice(self.sequences), self.is_scaled
        asked = asyncio.create_task(self.ask(shown))
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.uniform(0, 0.2))
            if asked.cancel():
                self.found["cancelled"] += 1
        try:
            answer = await asked
        except asyncio.CancelledError:
            return
        if answer is None:
            self.found["aborted"] += 1
            return
        self.found["answered"] += 1
        possible = {weights, self.is_scaled}  # it may have been answered just before an update
        if min(distance(answer, self.expected[each, shown]) for each in possible) > SAME:
            self.found["wrong"] += 1

    async def update(self) -> None:
        """As veRL's `CheckpointEngineManager.update_weights`, but for where the weights come from."""
        await self.engine.pause_generation(wait_for_inflight_requests=False, clear_cache=True)
        await self.engine.collective_rpc(scale, args=(0.5 if self.is_scaled else 2.0,))
        self.is_scaled = not self.is_scaled
        await self.engine.reset_prefix_cache(reset_connector=True)
        await self.engine.reset_mm_cache()
        await self.engine.reset_encoder_cache()
        await self.engine.resume_generation()

    async def disturb(self, updates: int) -> None:
        for _ in range(2):
            await self.learn()
            await self.update()
        for _ in range(updates):
            requests = [asyncio.create_task(self.request()) for _ in range(REQUESTS)]
            await asyncio.sleep(self.random.uniform(0, 0.3))
            await self.update()
            await asyncio.gather(*requests)
            await self.request()  # of the new weights alone

    def report(self) -> dict[str, Any]:
        answers = list(self.expected.values())
        nearest = min((distance(*pair) for pair in itertools.combinations(answers, 2)), default=None)
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return {
            "cache": CACHE,
            "nearest": nearest,
            "found": self.found,
            "read": sorted(self.read.items()),
            "processes": {process.pid: " ".join(process.cmdline()) for process in processes},
        }


def distance(first: dict[int, float], second: dict[int, float]) -> float:
    """Of two answers, over the tokens of both; those of which one says nothing are far apart."""
    both = first.keys() & second.keys()
    if len(both) < len(first) // 2:
        return 10.0
    return max(abs(first[token] - second[token]) for token in both)


async def main(policy: str, updates: int) -> None:
    player = Player(policy)
    await player.disturb(updates)
    print(json.dumps(player.report()), flush=True)
    while True:
        try:
            await player.ask(player.sequences[0])
        except EngineDeadError:
            return


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
