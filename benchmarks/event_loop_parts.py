"""What `vllm_images.py` plays on, and how long callbacks of an event loop take."""

from __future__ import annotations

import asyncio
import functools
import io
import itertools
import os
import random
import struct
import threading
import time
import uuid
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.types import Action, Evaluation, Observation, Task

ACT_S = (0.1, 1.0)
"""How long an action takes, at least and at most."""
THOUGHT = "I look at the window first, then I move on to the field that the task names, and check what is in it. " * 4


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


@dataclass
class Block:
    """A callback of an event loop, in milliseconds."""

    name: str
    cpu_ms: float = 0.0
    wall_ms: float = 0.0
    """Without the time that the thread had no core."""


class LoopWatch:
    """Times every callback of this thread's event loop, which must be asyncio's own."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.callbacks = 0
        self._thread = threading.get_ident()
        # Nanoseconds that the thread ran, and that it waited for a core.
        self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._upstream = upstream = asyncio.events.Handle._run

        def run(handle: Any) -> None:
            if threading.get_ident() != self._thread:
                return upstream(handle)
            name = _name(handle)
            # What it waited for a core is read within what it took: it is taken off that.
            began, waited, cpu = time.perf_counter(), self._waited_s(), time.thread_time()
            try:
                return upstream(handle)
            finally:
                cpu_s, waited_s = time.thread_time() - cpu, self._waited_s() - waited
                wall_s = time.perf_counter() - began
                self.callbacks += 1
                wall_s = max(cpu_s, wall_s - waited_s)
                if wall_s > 0.005:
                    self.blocks.append(Block(name, 1e3 * cpu_s, 1e3 * wall_s))

        asyncio.events.Handle._run = run  # type: ignore[method-assign,assignment]

    def stop(self) -> None:
        """Time no more."""
        asyncio.events.Handle._run = self._upstream  # type: ignore[method-assign]

    def _waited_s(self) -> float:
        return int(os.pread(self._schedule, 99, 0).split()[1]) / 1e9


def _name(handle: Any) -> str:
    """Whose turn it is: a task's coroutine, or a function."""
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(getattr(task.get_coro(), "__qualname__", task))
    return str(getattr(callback, "__qualname__", type(callback).__name__))
