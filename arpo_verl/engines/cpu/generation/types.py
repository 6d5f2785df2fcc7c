"""The generator's input and output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL.Image import Image

from arpo_verl.lib.config import require

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SamplingParams:
    """How one reply is sampled.

    Attributes:
        max_tokens: bound on the reply's tokens, the end token included.
        temperature: divides the logits; 0 takes the likeliest token.
        top_p: keeps the smallest set of likeliest tokens whose probabilities reach this sum.
        top_k: keeps this many likeliest tokens; -1 or 0 keeps all.
        ignore_eos: go on after an end token, up to `max_tokens`.
        stop_token_ids: further tokens that end the reply.
        seed: seed of this request alone; None derives it from the generator's seed and the prompt.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        require(self.max_tokens >= 1, "max_tokens", "1 or more", self.max_tokens)
        require(self.temperature >= 0, "temperature", "0 or more", self.temperature)
        require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        require(self.top_k >= -1, "top_k", "-1 or more", self.top_k)


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to answer.

    Attributes:
        request_id: name of the request in `abort`, unique among those in flight.
        prompt_ids: the prompt, with every image's placeholder expanded to one token for each visual token.
        images: images in the order of their placeholders, as the agent loop passed them to the processor.
        processor_kwargs: options of the image processor, as the trainer uses them.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    images: tuple[Image, ...] = ()
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerationResult:
    """A request's reply.

    Attributes:
        token_ids: the reply's tokens, the end token included.
        log_probs: log-probability of each token, over the full vocabulary at the sampling temperature (1 if that is 0).
        finish_reason: `stop` at an end token, `length` at `max_tokens`, `abort` after `Generator.abort`.
        num_cached_tokens: prompt tokens whose keys and values came from an earlier request.
    """

    request_id: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    num_cached_tokens: int = 0
