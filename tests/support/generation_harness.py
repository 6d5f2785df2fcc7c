"""Plain Transformers, which the generator must agree with, and shorthands for requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from arpo_verl.engines.cpu.generation.types import GenerationRequest, GenerationResult, SamplingParams

SYSTEM = "You are a GUI agent. You are given a task and screenshots."


@dataclass(frozen=True)
class PlainModel:
    """Plain Transformers: one sequence at a time, no cache, PyTorch's own attention."""

    model: Any
    processor: Any

    def prompt(self, text: str, images: Sequence[Image.Image] = ()) -> list[int]:
        content = [{"type": "image"} for _ in images] + [{"type": "text", "text": text}]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        chat = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self.processor(text=[chat], images=list(images) or None, return_tensors="pt")["input_ids"][0].tolist()

    def next_prompt(self, request: GenerationRequest, result: GenerationResult, image: Image.Image) -> list[int]:
        """The next turn's prompt: the last one, the reply, and a screenshot."""
        tokenizer = self.processor.tokenizer
        visual = int(self.inputs([image])["image_grid_thw"].prod()) // 4
        before = tokenizer("\n<|im_start|>user\n<|vision_start|>").input_ids
        after = tokenizer("<|vision_end|><|im_end|>\n<|im_start|>assistant\n").input_ids
        turn = before + [self.processor.image_token_id] * visual + after
        return [*request.prompt_ids, *result.token_ids, *turn]

    def inputs(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        return dict(self.processor.image_processor(images=list(images), return_tensors="pt")) if images else {}

    def logits(self, token_ids: Sequence[int], images: Sequence[Image.Image] = ()) -> torch.Tensor:
        """[tokens, vocabulary], computed as veRL's engine does, from the position ids of `_compute_position_ids`."""
        input_ids, inputs = torch.tensor([token_ids]), self.inputs(images)
        positions, _ = self.processor.get_rope_index(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            image_grid_thw=inputs.get("image_grid_thw"),
            mm_token_type_ids=(input_ids == self.processor.image_token_id).long(),
        )
        with torch.inference_mode():
            return self.model(
                input_ids=input_ids, attention_mask=torch.ones_like(input_ids), position_ids=positions, **inputs
            ).logits[0]

    def log_probs(self, request: GenerationRequest, result: GenerationResult) -> torch.Tensor:
        """What the trainer would compute for the reply's tokens."""
        token_ids = [*request.prompt_ids, *result.token_ids]
        logits = self.logits(token_ids, request.images) / (request.sampling.temperature or 1.0)
        count = len(result.token_ids)
        return logits.log_softmax(-1)[range(len(token_ids) - count - 1, len(token_ids) - 1), token_ids[-count:]]


def request(name: str, prompt: Sequence[int], images: Sequence[Image.Image] = (), **sampling: Any) -> GenerationRequest:
    """Shorthand for a request."""
    params = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **sampling})
    return GenerationRequest(name, tuple(prompt), params, tuple(images))


def run(generator: Any, *requests: GenerationRequest) -> dict[str, GenerationResult]:
    """Add all requests at once and generate until none is left."""
    for one in requests:
        generator.add(one)
    results: dict[str, GenerationResult] = {}
    while generator.num_unfinished:
        results.update({result.request_id: result for result in generator.decode()})
    return results
