"""Let many episodes share EasyR1's rollout engine, which answers many prompts in one call.

Each episode requests its next reply by itself. Requests that come during a call go into the next call. So desktops
never wait for each other, and each call waits only for its longest reply.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.sequence import Generated
from arpo_verl.easyr1 import stock
from arpo_verl.easyr1.images import FILE
from arpo_verl.errors import GenerationError

UNRESIZED: Mapping[str, Any] = {"min_pixels": None, "max_pixels": None}
"""Limits that EasyR1 gets, since our files already have the model's size; see `images`."""


@dataclass
class _Asked:
    """A request for one reply, which an episode waits for."""

    prompt_ids: list[int]
    files: list[bytes]
    reply: asyncio.Future[Generated]


class TurnEngine:
    """Gathers the prompts of all episodes and sends them to EasyR1's workers.

    Args:
        workers: EasyR1's worker group, between `prepare_rollout_engine` and `release_rollout_engine`.
        chat: the policy's tokens.
        max_tokens: most tokens of one reply.
        sampling: values of vLLM's `SamplingParams` that differ from `worker.rollout`'s, as in validation.
        video_fps: EasyR1's `data.video_fps`, which every batch needs.
    """

    def __init__(
        self, workers: Any, chat: ChatTokenizer, max_tokens: int, sampling: Mapping[str, Any], video_fps: float
    ) -> None:
        self._workers = workers
        self._chat = chat
        self._max_tokens = max_tokens
        own = {"n": 1, "max_tokens": max_tokens, "logit_bias": dict.fromkeys(chat.placeholder_ids, -100.0)}
        self._meta = {**sampling, **UNRESIZED, "video_fps": video_fps, **own}
        self._asked: list[_Asked] = []
        self._wake = asyncio.Event()
        self.calls = 0
        """Number of calls of the workers."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TurnEngine]:
        """Answer requests within this block. An error of the workers reaches every episode that waits for them."""
        task = asyncio.create_task(self._answer_all())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def generate(self, prompt_ids: list[int], images: list[Image.Image], max_tokens: int) -> Generated:
        """Return one reply.

        Raises:
            GenerationError: the reply is empty, or has a placeholder of an image that does not exist.
        """
        asked = _Asked(prompt_ids, [image.info[FILE] for image in images], asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        self._wake.set()
        generated = await asked.reply
        if not generated.token_ids:
            raise GenerationError("the rollout engine must give a reply, got no token")
        if not self._chat.placeholder_ids.isdisjoint(generated.token_ids):
            raise GenerationError(
                "a reply must hold no <|image_pad|> and no <|video_pad|>, since no image is behind it"
            )
        return generated

    async def _answer_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, []
            try:
                answered = await asyncio.to_thread(self._call, asked)
            except Exception as error:
                for one in asked:
                    if not one.reply.done():  # it is done if its episode was cancelled
                        one.reply.set_exception(error)
                continue
            for one, reply in answered:
                if not one.reply.done():
                    one.reply.set_result(reply)

    def _call(self, asked: Sequence[_Asked]) -> list[tuple[_Asked, Generated]]:
        self.calls += 1
        place = torch.zeros(len(asked), 1, dtype=torch.long)  # a placeholder: the engine reads raw_prompt_ids
        batch = stock.DataProto.from_dict(
            tensors={"input_ids": place, "attention_mask": place, "position_ids": place},
            non_tensors={
                "raw_prompt_ids": as_objects(self._collapsed(one.prompt_ids) for one in asked),
                "multi_modal_data": as_objects({"images": one.files} for one in asked),
            },
            meta_info=dict(self._meta),
        )
        batch, padding = stock.pad_dataproto_to_divisor(batch, self._workers.world_size)
        written = stock.unpad_dataproto(self._workers.generate_sequences(batch), padding)
        ends = written.meta_info.get("eos_token_id", ())
        ends = frozenset([ends] if isinstance(ends, int) else ends or ())
        replies = [Generated(tuple(self._cut(ids, ends)), None) for ids in written.batch["responses"].tolist()]
        return list(zip(asked, replies, strict=True))  # here, so that a wrong length reaches the episodes too

    def _collapsed(self, prompt_ids: Sequence[int]) -> list[int]:
        """Return the prompt with one placeholder an image, which vLLM expands to the image's tokens."""
        image = self._chat.image_id
        return [id for id, run in itertools.groupby(prompt_ids) for _ in range(1 if id == image else len(list(run)))]

    def _cut(self, reply: Sequence[int], ends: frozenset[int]) -> list[int]:
        """Return a reply without padding, up to the first token that ends it."""
        padding = self._chat.tokenizer.pad_token_id
        kept = []
        for id in reply[: self._max_tokens]:
            if id == padding and id not in ends:
                break
            kept.append(id)
            if id in ends:
                break
        return kept


def as_objects(values: Any) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return a column of objects. Numpy itself would turn lists of equal length into a matrix."""
    values = list(values)
    column = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        column[place] = value
    return column
