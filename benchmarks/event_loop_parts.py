"""What `event_loop.py` plays and listens with: desktops, a policy's servers, a rollout worker that is timed."""

from __future__ import annotations

import asyncio
import functools
import io
import itertools
import os
import random
import struct
import sys
import threading
import time
import traceback
import uuid
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from PIL import Image, ImageDraw

from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.types import Action, Evaluation, Observation, Task

ACT_S, REPLY_S = (0.1, 1.0), (0.1, 1.0)
"""How long an action and a reply take, at least and at most."""
THOUGHT = "I look at the window first, then I move on to the field that the task names, and check what is in it. " * 4
LONGEST = 12
"""Callbacks that are told of."""
TRACED_MS = 20.0


@functools.lru_cache(maxsize=4)
def _screen(width: int, height: int) -> bytes:
    """A desktop's screen as PNG: windows, text, and a photograph's noise, of 0.3 to 0.4 MB at 1920x1080."""
    rng = np.random.default_rng(0)
    image = Image.new("RGB", (width, height), (48, 52, 70))
    draw = ImageDraw.Draw(image)
    draw.rectangle((width // 12, height // 12, width * 3 // 4, height * 5 // 6), fill="white")
    for line in range(height // 12 + 10, height * 5 // 6 - 20, 14):
        words = " ".join("".join(map(chr, rng.integers(97, 123, length))) for length in rng.integers(2, 10, 28))
        draw.text((width // 12 + 12, line), words, fill="black")
    noise = rng.integers(0, 255, (height // 4, width // 6, 3), dtype=np.uint8)
    image.paste(Image.fromarray(noise), (width * 19 // 24, height // 8))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def screenshot(width: int, height: int, name: str) -> bytes:
    """The screen as bytes that no other name has: PNG's own field for a text, behind the header."""
    data, chunk = _screen(width, height), b"tEXtname\0" + name.encode("latin-1")
    field = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    behind_header = 8 + 4 + 4 + 13 + 4
    return data[:behind_header] + field + data[behind_header:]


class Desktop(DesktopEnvironment):
    """Shows another screenshot after each action; nothing else happens."""

    def __init__(self, config: EnvironmentConfig, name: str):
        self.name = name
        self._size = config.screen_size
        self._seen = itertools.count()

    def reset(self, task: Task) -> Observation:
        return self._look()

    def step(self, action: Action) -> Observation:
        return self._look()

    def evaluate(self) -> Evaluation:
        return Evaluation(0.0)

    def close(self) -> None:
        pass

    def _look(self) -> Observation:
        time.sleep(random.uniform(*ACT_S))
        return Observation(screenshot(*self._size, f"{self.name} {next(self._seen)} {uuid.uuid4().hex}"))


class Server:
    """A replica's server: takes in each prompt's images as the `transformers` engine does, and writes a click."""

    def __init__(self, policy: str) -> None:
        from verl.utils import hf_processor, hf_tokenizer

        from arpo_verl.cpu.generation import prompts

        prompts._MAX_IMAGES = 1 << 20  # a cache that holds what its episodes show
        processor = hf_processor(policy)
        self._processed = count_processed(processor.image_processor)
        self._preparer = prompts.PromptPreparer(processor)
        self._tokenizer = hf_tokenizer(policy)
        self._requests = 0
        self._screenshots: set[int] = set()

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, image_data: Any, **kwargs: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self._requests += 1
        # Of the policy's own small size: how often is counted here, not how long.
        loop = asyncio.get_running_loop()
        images = [await loop.run_in_executor(None, self._preparer._image, image, {}) for image in image_data]
        self._screenshots.update(image.digest for image in images)
        for image in images:
            image.pixel_values = None  # that there is an entry is enough; 128 episodes' pixels are 11 GB
        await asyncio.sleep(random.uniform(*REPLY_S))
        click = f"Thought: {THOUGHT}\nAction: click(start_box='({random.randrange(1900)},{random.randrange(1000)})')"
        token_ids = self._tokenizer.encode(f"{click}<|im_end|>", add_special_tokens=False)
        return TokenOutput(token_ids=token_ids, log_probs=[-0.5] * len(token_ids), extra_fields={"global_steps": 1})

    async def told(self) -> dict[str, Any]:
        """What it was asked so far."""
        return {
            "requests": self._requests,
            "processed": sum(self._processed),
            "screenshots": list(self._screenshots),
        }


def count_processed(image_processor: Any) -> list[int]:
    """Have this process's image processors of that class note how many images each call had."""
    upstream, calls = type(image_processor).preprocess, []

    @functools.wraps(upstream)
    def preprocess(self: Any, images: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(len(images) if isinstance(images, (list, tuple)) else 1)
        return upstream(self, images, *args, **kwargs)

    type(image_processor).preprocess = preprocess
    return calls


@dataclass
class Block:
    """A callback of an event loop, in milliseconds."""

    name: str
    cpu_ms: float = 0.0
    wall_ms: float = 0.0
    """Without the time that the thread had no core."""
    where: list[str] = field(default_factory=list)


class LoopWatch:
    """Times every callback of this thread's event loop, which must be asyncio's own.

    Args:
        trace: look from another thread where a callback is at that takes long, which itself costs some time.
    """

    def __init__(self, trace: bool) -> None:
        self.blocks: list[Block] = []
        self.callbacks = 0
        self._thread = threading.get_ident()
        # Nanoseconds that the thread ran, and that it waited for a core.
        self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._since = 0.0
        self._upstream = upstream = asyncio.events.Handle._run

        def run(handle: Any) -> None:
            if threading.get_ident() != self._thread:
                return upstream(handle)
            name = _name(handle)
            # What it waited for a core is read within what it took: it is taken off that.
            began, waited, cpu = time.perf_counter(), self._waited_s(), time.thread_time()
            self._since, self._where = began, []
            try:
                return upstream(handle)
            finally:
                cpu_s, waited_s = time.thread_time() - cpu, self._waited_s() - waited
                wall_s = time.perf_counter() - began
                self._since = 0.0
                self.callbacks += 1
                wall_s = max(cpu_s, wall_s - waited_s)
                if wall_s > 0.005:
                    self.blocks.append(Block(name, 1e3 * cpu_s, 1e3 * wall_s, self._where))

        asyncio.events.Handle._run = run  # type: ignore[method-assign,assignment]
        if trace:
            threading.Thread(target=self._look, daemon=True).start()

    def stop(self) -> None:
        """Time no more."""
        asyncio.events.Handle._run = self._upstream  # type: ignore[method-assign]

    def _waited_s(self) -> float:
        return int(os.pread(self._schedule, 99, 0).split()[1]) / 1e9

    def _look(self) -> None:
        while True:
            time.sleep(0.005)
            since = self._since
            if since and time.perf_counter() - since > TRACED_MS / 1e3:
                frames = traceback.extract_stack(sys._current_frames()[self._thread])[-6:]
                self._where.append(
                    " < ".join(f"{f.name}:{f.filename.rsplit('/', 1)[-1]}:{f.lineno}" for f in frames[::-1])
                )

    def told(self, trace: bool) -> dict[str, Any]:
        """The longest, and how many there were."""
        by_cpu = sorted(self.blocks, key=lambda block: -block.cpu_ms)
        by_wall = sorted(self.blocks, key=lambda block: -block.wall_ms)
        figures: dict[str, Any] = {
            "callbacks": self.callbacks,
            "blocked_cpu_ms": by_cpu[0].cpu_ms if by_cpu else 0.0,
            "blocked_ms": by_wall[0].wall_ms if by_wall else 0.0,
            "longest": [[block.name, round(block.cpu_ms, 1), round(block.wall_ms, 1)] for block in by_cpu[:LONGEST]],
        }
        if trace:
            figures["where"] = [[b.name, round(b.cpu_ms), b.where] for b in by_cpu[:LONGEST]]
        return figures


def _name(handle: Any) -> str:
    """Whose turn it is: a task's coroutine, or a function."""
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(getattr(task.get_coro(), "__qualname__", task))
    return str(getattr(callback, "__qualname__", type(callback).__name__))


def measured(workers_class: Any) -> Any:
    """A class of rollout workers, which is a Ray actor's, with a watch on its loop."""
    upstream = workers_class.__ray_actor_class__

    class MeasuredWorker(upstream):  # type: ignore[misc,valid-type]
        async def watch(self, trace: bool) -> None:
            """Measure from here on."""
            self._trace, self._episodes, self._sent = trace, 0, {}
            self._processed = count_processed(self.processor.image_processor)
            self._watch = LoopWatch(trace)
            generate = self.llm_client.generate

            async def noted(request_id: str, **kwargs: Any) -> Any:
                if not self._sent or request_id in self._sent:  # of the first episode
                    self._sent.setdefault(request_id, []).append(list(kwargs["image_data"]))
                return await generate(request_id, **kwargs)

            self.llm_client.generate = noted

        async def _run_agent_loop(self, *args: Any, **kwargs: Any) -> Any:
            self._episodes += 1
            return await super()._run_agent_loop(*args, **kwargs)

        async def told(self) -> dict[str, Any]:
            """What was measured."""
            blocks = self._watch.told(self._trace)
            return {
                "episodes": self._episodes,
                "processed": sum(self._processed),
                "sent_bytes_per_episode": sent_bytes(next(iter(self._sent.values()))),
                "blocks": blocks,
            }

    return ray.remote(MeasuredWorker)


def sent_bytes(turns: list[list[Any]]) -> int:
    """What an episode's images take on their way, by turn: pickled, and what they refer to in Ray's store once."""
    from arpo_verl.plugin.sent_images import SentImage

    stored = {image.id: len(image._screenshot) for turn in turns for image in turn if isinstance(image, SentImage)}
    return sum(len(ray.cloudpickle.dumps(turn)) for turn in turns) + sum(stored.values())
