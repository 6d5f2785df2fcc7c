"""The desktops and the policy of `rollout_schedule.py`: they do nothing but take the time that is drawn for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

from PIL import Image
from rollout_draws import Session, World
from verl.workers.rollout.replica import TokenOutput

from arpo_verl.errors import DesktopLostError, DesktopSetupError, EvaluatorError
from arpo_verl.types import Action, Evaluation, Observation, Size, Task

T = TypeVar("T")
Spending = Generator[float, None, T]
"""A call that yields the seconds which it takes, bit by bit, and returns or raises what the call does."""

SLICE_S = 1.0
"""How often a boot looks with how many others it shares its host."""
FOR_EVER_S = 1e6
CLICK, DONE = "Action: click(start_box='(20,20)')", "Thought: Done.\nAction: finished()"
END = "<|im_end|>"


@dataclass
class Host:
    """A node's machine: it bears `bears` boots at full speed, and shares itself among more."""

    bears: int
    factor: float = 1.0
    """How much slower it is than others in all that it does."""
    booting: int = 0
    boot_s: float = 0.0
    """What its desktops have spent on boots."""


class SimulatedCalls:
    """One desktop's calls, as `DesktopEnvironment` has them.

    Args:
        attempts: at each session so far, of all desktops.
    """

    def __init__(self, world: World, host: Host, name: str, attempts: Counter[Session], size: Size):
        self._world, self._host, self._attempts, self._size = world, host, attempts, size
        slot, generation = name.removeprefix("desktop-").split(".")
        self._boots, self._place = 0, (int(slot), int(generation))
        self._is_clean = False
        self._session: Session = (0, 0, 0)
        self._attempt = self._call = 0

    def prepare(self) -> Spending[None]:
        if self._is_clean:
            return
        left = self._world.seconds("boot", 2, *self._place, self._boots) * self._host.factor
        self._boots += 1
        self._host.booting += 1
        try:
            while left > 0:
                speed = min(1.0, self._host.bears / self._host.booting)
                slice_s = min(SLICE_S, left / speed)
                yield slice_s
                left -= slice_s * speed
                self._host.boot_s += slice_s
        finally:
            self._host.booting -= 1
        self._is_clean = True

    def is_ready(self) -> Spending[bool]:
        yield 0.2
        return True

    def reset(self, task: Task) -> Spending[Observation]:
        yield from self.prepare()
        self._is_clean = False
        step, number, rollout = task.spec["session"]
        self._session, self._call = (step, number, rollout), 0
        self._attempt = self._attempts[self._session]
        self._attempts[self._session] += 1
        yield from self._spend(DesktopSetupError)
        return screenshot(self._size)

    def step(self, action: Action) -> Spending[Observation]:
        self._call += 1
        yield from self._spend(DesktopLostError)
        return screenshot(self._size)

    def evaluate(self) -> Spending[Evaluation]:
        self._call += 1
        yield from self._spend(EvaluatorError)
        return Evaluation(float(self._session[2] % 2))

    def _spend(self, error: type[Exception]) -> Spending[None]:
        seconds = self._world.desktop_call(self._session, self._call) * self._host.factor
        fault = self._world.fault(self._session, self._attempt)
        if fault is None or fault.call != self._call:
            yield seconds
            return
        yield FOR_EVER_S if fault.hangs else seconds / 2
        raise error(f"drawn for attempt {self._attempt} at {self._session}")


@lru_cache
def screenshot(size: Size) -> Observation:
    buffer = BytesIO()
    Image.new("RGB", size, "white").save(buffer, format="PNG")
    return Observation(buffer.getvalue())


class SimulatedPolicy:
    """Stands for veRL's `LLMServerClient`: clicks until the session's length is reached."""

    def __init__(self, world: World, tokenizer: Any):
        self._world = world
        self._tokens = {text: tokenizer.encode(text + END, add_special_tokens=False) for text in (CLICK, DONE)}

    async def generate(self, request_id: str, *, image_data: Sequence[Any], **_: Any) -> TokenOutput:
        session = session_of(request_id)
        turn = len(image_data) - 1
        await asyncio.sleep(self._world.reply(session, turn))
        token_ids = self._tokens[DONE if turn + 1 >= self._world.length(session) else CLICK]
        extra = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), session[0])
        log_probs = [-0.1] * len(token_ids)
        return TokenOutput(token_ids=token_ids, log_probs=log_probs, stop_reason="completed", extra_fields=extra)


def session_of(request_id: str) -> Session:
    """From the name that the agent loop gives its requests where the recipe asks for full determinism."""
    step, number, rollout = map(int, request_id.removeprefix("det-").split("-"))
    return step, number, rollout
