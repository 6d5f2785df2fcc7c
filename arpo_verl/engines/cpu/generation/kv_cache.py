"""Cache each sequence's keys and values, and compute attention for sequences packed into one row.

A pass of the generator concatenates the new tokens of all running sequences, prompts and single tokens alike, into one
row without padding: every linear layer sees them as one batch. Only attention separates the sequences: it appends each
one's keys and values to that sequence's own cache and attends within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# Transformers finds the attention below by this name.
ATTENTION = "arpo_verl_packed"

# Caches grow by steps of this many tokens, about one reply, so that a reply rarely moves its cache.
_GROWTH = 128


@dataclass(frozen=True)
class KVShape:
    """The shape of a model's cache: `layers` tensors of [kv_heads, tokens, head_dim], for keys and for values."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype


class SequenceCache:
    """Holds the keys and values of one token sequence in every layer.

    Attributes:
        content: [length], int64, what each cached position holds; see `prompts.PreparedPrompt.content`.
        length: cached tokens; the current forward pass writes behind them.
    """

    def __init__(self, shape: KVShape, capacity: int) -> None:
        self.shape = shape
        self.content = np.empty(0, dtype=np.int64)
        self.length = 0
        self.keys, self.values = self._allocate(capacity), self._allocate(capacity)

    @property
    def capacity(self) -> int:
        return self.keys[0].shape[1]

    def fork(self, length: int, capacity: int) -> SequenceCache:
        """Copy the first `length` tokens into a new cache."""
        copy = SequenceCache(self.shape, max(capacity, length))
        copy._take(self, length)
        copy.content, copy.length = self.content[:length], length
        return copy

    def reserve(self, capacity: int) -> None:
        """Make room for a total of `capacity` tokens."""
        if capacity > self.capacity:
            roomier = self.fork(self.length, -(-capacity // _GROWTH) * _GROWTH)
            self.keys, self.values = roomier.keys, roomier.values

    def commit(self, content: np.ndarray) -> None:
        """Count the tokens that the forward pass wrote, whose ids or digests are `content`."""
        self.content = np.concatenate([self.content, content])
        self.length += len(content)

    def _allocate(self, capacity: int) -> list[torch.Tensor]:
        shape = self.shape
        return [torch.empty(shape.kv_heads, capacity, shape.head_dim, dtype=shape.dtype) for _ in range(shape.layers)]

    def _take(self, source: SequenceCache, length: int) -> None:
        for mine, theirs in zip(self.keys + self.values, source.keys + source.values, strict=True):
            mine[:, :length] = theirs[:, :length]


class PackedBatch:
    """Maps the parts of one forward pass's row to their sequences.

    Args:
        caches: one for each sequence, with room for its new tokens.
        counts: new tokens of each sequence.
    """

    def __init__(self, caches: Sequence[SequenceCache], counts: Sequence[int]) -> None:
        self.parts = []
        start = 0
        for cache, count in zip(caches, counts, strict=True):
            self.parts.append((cache, start, start + count, _mask(cache.length, count)))
            start += count


def _mask(cached: int, new: int) -> torch.Tensor | None:
    """Return [new, cached + new], True where a new token sees a token; None if the kernel's own rule does the same."""
    if cached == 0 or new == 1:
        return None
    return torch.ones(new, cached + new, dtype=torch.bool).tril(diagonal=cached)


class _AttentionLayer(Protocol):
    layer_idx: int


def packed_attention(
    module: _AttentionLayer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed_batch: PackedBatch,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention, in Transformers' interface.

    Args:
        query: [1, heads, T, head_dim] over the packed row; key and value have the key-value heads instead.
        attention_mask: ignored, since `packed_batch` has the masks.

    Returns:
        [1, T, heads, head_dim], and None for the weights.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    outputs = []
    for cache, start, stop, mask in packed_batch.parts:
        keys, values = cache.keys[module.layer_idx], cache.values[module.layer_idx]
        total = cache.length + stop - start
        keys[:, cache.length : total] = key[0, :, start:stop]
        values[:, cache.length : total] = value[0, :, start:stop]
        keys, values, queries = keys[None, :, :total], values[None, :, :total], query[:, :, start:stop]
        if stop - start == 1:
            # The heads that share a key head take the place of query positions, so that no key is copied for them.
            queries = queries.reshape(1, kv_heads, heads // kv_heads, -1)
            output = scaled_dot_product_attention(queries, keys, values, scale=scaling).reshape(1, heads, 1, -1)
        else:
            keys = keys.repeat_interleave(heads // kv_heads, dim=1) if heads != kv_heads else keys
            values = values.repeat_interleave(heads // kv_heads, dim=1) if heads != kv_heads else values
            output = scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling
            )
        outputs.append(output)
    return torch.cat(outputs, dim=2).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)
