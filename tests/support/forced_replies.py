"""Loaded into the stock trainer by VERL_USE_EXTERNAL_MODULES: a script chooses what the rollout engine writes.

Only which token comes next is the script's. Prompts, pictures, token ids and the log-prob of each token go through the
engine and its model as ever. ARPO_VERL_SCRIPT names the script, `module:function`:
(training step of this process, prompt, number of screenshots) -> the reply.
"""

import dataclasses
import importlib
import os
from collections.abc import Iterator
from unittest.mock import patch

import torch

from arpo_verl.engines.cpu.generation import generator, sampling
from arpo_verl.engines.cpu.generation.types import SamplingParams

_MODULE, _, _NAME = os.environ["ARPO_VERL_SCRIPT"].partition(":")
_SCRIPT = getattr(importlib.import_module(_MODULE), _NAME)


@dataclasses.dataclass(frozen=True)
class Forced(SamplingParams):
    """A reply whose tokens are given."""

    token_ids: Iterator[int] = iter(())


def _observe(generator_class) -> None:
    add = generator_class.add

    def forced_add(self, request):
        tokenizer = self._preparer._processor.tokenizer
        # The weights change once before the first step, and once behind each.
        reply = _SCRIPT(self._version, tokenizer.decode(list(request.prompt_ids)), len(request.images))
        token_ids = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.convert_tokens_to_ids("<|im_end|>")]
        forced = Forced(**vars(request.sampling), token_ids=iter(token_ids))
        add(self, dataclasses.replace(request, sampling=forced))

    generator_class.add = forced_add


def _sample(logits, params, uniforms, banned):
    forced = torch.tensor([next(one.token_ids) for one in params])
    with patch.object(sampling, "_draw", lambda kept, points: forced):
        return sampling.sample(logits, params, uniforms, banned)


_observe(generator.Generator)
generator.sample = _sample
