"""Which finished sequences' keys and values are kept, and which of them a new prompt continues from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from arpo_verl.cpu.generation.kv_cache import KVShape, SequenceCache

# Tokens. Below this, copying costs about what computing does.
MIN_SHARED = 16


def common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """Return how many leading entries two content arrays share."""
    size = min(len(left), len(right))
    differing = np.flatnonzero(left[:size] != right[:size])
    return int(differing[0]) if len(differing) else size


class PrefixStore:
    """Caches of finished sequences, the least recently used dropped first.

    An episode's next turn finds the cache of its last one here and takes it over; rollouts of one task copy their
    common beginning from each other.
    """

    def __init__(self, shape: KVShape, max_tokens: int) -> None:
        self._shape = shape
        self._max_tokens = max_tokens
        self._idle: dict[int, SequenceCache] = {}  # in the order of last use

    @property
    def num_tokens(self) -> int:
        return sum(cache.length for cache in self._idle.values())

    def acquire(self, content: np.ndarray, running: Iterable[SequenceCache], room: int) -> SequenceCache:
        """Give a cache for a sequence that begins with `content`, holding as much of it as is known.

        At least the last token of `content` is left to compute: its logits are wanted.

        Args:
            content: [tokens], what the sequence begins with.
            running: caches in use, which may be copied from.
            room: tokens to make room for beyond `content`.
        """
        usable, capacity = content[:-1], len(content) + room
        best, shared = None, 0
        for cache in [*self._idle.values(), *running]:
            length = common_prefix(cache.content, usable)
            # Of equals the idle one that ends there: it can be taken over without a copy.
            whole = id(cache) in self._idle and length == cache.length
            if length > shared or (length == shared and length and whole):
                best, shared = cache, length
        if best is None or shared < MIN_SHARED:
            return SequenceCache(self._shape, capacity)
        if id(best) in self._idle and shared == best.length:
            del self._idle[id(best)]
            best.reserve(capacity)
            return best
        return best.fork(shared, capacity)

    def release(self, cache: SequenceCache) -> None:
        """Keep a finished sequence's cache, as far as the bound on tokens allows."""
        self._idle[id(cache)] = cache
        excess = self.num_tokens - self._max_tokens
        while excess > 0:
            excess -= self._idle.pop(next(iter(self._idle))).length

    def caches(self) -> list[SequenceCache]:
        """Return the caches that wait for someone to continue them."""
        return list(self._idle.values())

    def clear(self) -> None:
        self._idle.clear()
