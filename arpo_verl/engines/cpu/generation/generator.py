"""Turn requests into replies: a pass makes one token for every running request."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from arpo_verl.engines.cpu.generation.kv_cache import KVShape, PackedBatch, SequenceCache
from arpo_verl.engines.cpu.generation.prefix import MIN_SHARED, PrefixStore, common_prefix
from arpo_verl.engines.cpu.generation.prompts import PreparedImage, PreparedPrompt, PromptPreparer
from arpo_verl.engines.cpu.generation.sampling import sample
from arpo_verl.engines.cpu.generation.types import FinishReason, GenerationRequest, GenerationResult
from arpo_verl.engines.cpu.options import EngineOptions

# Room for a reply when its sequence starts, in tokens; a longer reply moves its cache.
_REPLY_ROOM = 64


@dataclass
class _Waiting:
    request: GenerationRequest
    prompt: PreparedPrompt


@dataclass
class _Running:
    request: GenerationRequest
    prompt: PreparedPrompt
    cache: SequenceCache
    random: random.Random
    num_cached: int
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def num_new(self) -> int:
        """Count the tokens of the next forward pass: what is left of the prompt, then one at a time."""
        return 1 if self.token_ids else len(self.prompt.content) - self.cache.length

    def result(self, reason: FinishReason) -> GenerationResult:
        return GenerationResult(
            self.request.request_id, tuple(self.token_ids), tuple(self.log_probs), reason, self.num_cached
        )


class Generator:
    """Batches continuously: a request joins at the next token, however far the others are.

    Only one thread at a time may use it.

    Args:
        model: a Qwen2-VL or Qwen2.5-VL `ForConditionalGeneration` whose text tower uses the attention `ATTENTION`.
        processor: the model's processor, with veRL's `get_rope_index` bound to it.
        eos_token_ids: tokens that end a reply.
        banned_token_ids: tokens that are never generated.
        options: sizes of batch and cache.
        seed: what requests without a seed of their own are drawn with.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: object,
        *,
        eos_token_ids: Collection[int],
        banned_token_ids: Iterable[int],
        options: EngineOptions,
        seed: int = 0,
    ) -> None:
        self.model = model.eval()
        self._options, self._seed = options, seed
        self._preparer = PromptPreparer(processor)
        text = model.config.text_config
        heads = text.num_attention_heads
        self._shape = KVShape(text.num_hidden_layers, text.num_key_value_heads, text.hidden_size // heads, model.dtype)
        self._prefixes = PrefixStore(self._shape, self._options.kv_cache_tokens)
        self._eos = frozenset(eos_token_ids)
        self._banned = torch.zeros(text.vocab_size, dtype=torch.bool)
        self._banned[list(banned_token_ids)] = True
        self._waiting: deque[_Waiting] = deque()
        self._running: list[_Running] = []
        self._occurrences: Counter[bytes] = Counter()
        self._version = 0

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._running)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises:
            ValueError: the request's images do not fit its prompt.
        """
        prompt = self._preparer.prepare(request.prompt_ids, request.images, request.processor_kwargs)
        self._waiting.append(_Waiting(request, prompt))

    @torch.inference_mode()
    def decode(self) -> list[GenerationResult]:
        """Generate one token for every request in the batch, and return the replies that finished."""
        self._admit()
        if not self._running:
            return []
        logits = self._forward()
        params = [sequence.request.sampling for sequence in self._running]
        uniforms = [sequence.random.random() for sequence in self._running]
        tokens, log_probs = sample(logits, params, uniforms, self._banned)
        for sequence, token, log_prob in zip(self._running, tokens, log_probs, strict=True):
            sequence.token_ids.append(token)
            sequence.log_probs.append(log_prob)
        return self._retire()

    def abort(self, request_ids: Collection[str] | None = None) -> list[GenerationResult]:
        """Abort the named requests, or all, and return what they have so far."""

        def named(request: GenerationRequest) -> bool:
            return request_ids is None or request.request_id in request_ids

        aborted = [s.result("abort") for s in self._running if named(s.request)]
        aborted += [GenerationResult(w.request.request_id, (), (), "abort") for w in self._waiting if named(w.request)]
        self._running = [s for s in self._running if not named(s.request)]
        self._waiting = deque(w for w in self._waiting if not named(w.request))
        return aborted

    def weights_changed(self) -> None:
        """Drop all that was computed with the old weights.

        Raises:
            RuntimeError: there are unfinished requests, with keys, values and image features of the old weights.
        """
        if self.num_unfinished:
            raise RuntimeError(f"weights changed under {self.num_unfinished} unfinished requests; abort them first")
        self._version += 1
        self._occurrences.clear()
        self.clear_cache()

    def clear_cache(self) -> None:
        """Drop the keys and values of finished requests, and the features of all images."""
        self._prefixes.clear()
        self._preparer.clear()

    def _admit(self) -> None:
        """Move waiting requests into the batch, as far as places and tokens allow."""
        budget = self._options.max_batch_tokens
        joined: list[_Running] = []
        held_back: deque[_Waiting] = deque()
        while self._waiting and len(self._running) < self._options.max_batch_size:
            waiting = self._waiting.popleft()
            if self._options.prefix_reuse and self._computes_now(waiting.prompt, joined):
                held_back.append(waiting)
                continue
            cache = self._cache_for(waiting.prompt)
            num_new = len(waiting.prompt.content) - cache.length
            if joined and num_new > budget:
                self._prefixes.release(cache)
                held_back.append(waiting)
                break
            budget -= num_new
            joined.append(_Running(waiting.request, waiting.prompt, cache, self._random(waiting), cache.length))
            self._running.append(joined[-1])
        self._waiting.extendleft(reversed(held_back))

    def _computes_now(self, prompt: PreparedPrompt, joined: Sequence[_Running]) -> bool:
        """Return whether a request that just joined computes more of this prompt than the caches have.

        Waiting for it is then cheaper. Rollouts of one task arrive together and begin alike.
        """
        if not joined:
            return False
        caches = [*self._prefixes.caches(), *(s.cache for s in self._running)]
        known = max(common_prefix(cache.content, prompt.content) for cache in caches)
        return max(common_prefix(s.prompt.content, prompt.content) for s in joined) >= known + MIN_SHARED

    def _cache_for(self, prompt: PreparedPrompt) -> SequenceCache:
        if self._options.prefix_reuse:
            return self._prefixes.acquire(prompt.content, (s.cache for s in self._running), _REPLY_ROOM)
        return SequenceCache(self._shape, len(prompt.content) + _REPLY_ROOM)

    def _random(self, waiting: _Waiting) -> random.Random:
        """Return a generator for the request's own random numbers, which do not depend on the order of requests."""
        if waiting.request.sampling.seed is not None:
            return random.Random(waiting.request.sampling.seed)
        digest = hashlib.blake2b(waiting.prompt.content.tobytes(), digest_size=16).digest()
        self._occurrences[digest] += 1
        return random.Random(f"{self._seed} {self._version} {digest.hex()} {self._occurrences[digest]}")

    def _forward(self) -> torch.Tensor:
        """Run the model over all new tokens, packed into one row; return each sequence's last logits, [B, V]."""
        counts = [sequence.num_new for sequence in self._running]
        for sequence, count in zip(self._running, counts, strict=True):
            sequence.cache.reserve(sequence.cache.length + count)
        hidden = self.model.model.language_model(
            inputs_embeds=self._embeddings()[None],
            position_ids=torch.cat([_new_positions(s) for s in self._running], dim=1)[:, None],
            # A dict makes Transformers build no masks: the attention makes its own.
            attention_mask={"full_attention": None},
            use_cache=False,
            packed_batch=PackedBatch([s.cache for s in self._running], counts),
        ).last_hidden_state
        for sequence in self._running:
            sequence.cache.commit(_new_content(sequence))
        last = torch.tensor(counts).cumsum(0) - 1
        logits: torch.Tensor = self.model.lm_head(hidden[0, last]).float()
        return logits

    def _embeddings(self) -> torch.Tensor:
        """Embed all new tokens, [T, hidden]: text by the table, images by the vision tower."""
        self._compute_features()
        tokens = torch.cat([_new_tokens(sequence) for sequence in self._running])
        embeddings: torch.Tensor = self.model.model.language_model.embed_tokens(tokens)
        offset = 0
        for sequence in self._running:
            for image, start, stop in _new_images(sequence):
                first = max(start, sequence.cache.length)
                place = offset - sequence.cache.length
                assert image.features is not None
                embeddings[place + first : place + stop] = image.features[first - start :]
            offset += sequence.num_new
        return embeddings

    def _compute_features(self) -> None:
        """Run the vision tower once over every image that has no features yet."""
        images = {i.digest: i for s in self._running for i, _, _ in _new_images(s) if i.features is None}
        if not images:
            return
        pixels = torch.cat([image.pixel_values for image in images.values() if image.pixel_values is not None])
        grids = torch.stack([image.grid for image in images.values()])
        outputs = self.model.model.get_image_features(pixels, grids, return_dict=True)
        for image, features in zip(images.values(), outputs.pooler_output, strict=True):
            image.features, image.pixel_values = features, None

    def _retire(self) -> list[GenerationResult]:
        """Take finished sequences out of the batch, and keep their caches for requests that continue them."""
        finished, running = [], []
        for sequence in self._running:
            reason = self._finish_reason(sequence)
            if reason is None:
                running.append(sequence)
                continue
            finished.append(sequence.result(reason))
            self._prefixes.release(sequence.cache)
        self._running = running
        return finished

    def _finish_reason(self, sequence: _Running) -> FinishReason | None:
        sampling, last = sequence.request.sampling, sequence.token_ids[-1]
        if (last in self._eos and not sampling.ignore_eos) or last in sampling.stop_token_ids:
            return "stop"
        return "length" if len(sequence.token_ids) >= sampling.max_tokens else None


def _new_tokens(sequence: _Running) -> torch.Tensor:
    if sequence.token_ids:
        return torch.tensor(sequence.token_ids[-1:])
    return sequence.prompt.token_ids[sequence.cache.length :]


def _new_content(sequence: _Running) -> np.ndarray:
    if sequence.token_ids:
        return np.array(sequence.token_ids[-1:], dtype=np.int64)
    return sequence.prompt.content[sequence.cache.length :]


def _new_positions(sequence: _Running) -> torch.Tensor:
    if sequence.token_ids:
        return torch.full((3, 1), sequence.prompt.next_position + len(sequence.token_ids) - 1)
    return sequence.prompt.positions[:, sequence.cache.length :]


def _new_images(sequence: _Running) -> list[tuple[PreparedImage, int, int]]:
    """Return the images with at least one token in the next forward pass."""
    if sequence.token_ids:
        return []
    return [placed for placed in sequence.prompt.images if placed[2] > sequence.cache.length]
