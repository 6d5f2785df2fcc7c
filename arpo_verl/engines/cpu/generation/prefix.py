"""Keep finished sequences' keys and values, and find the one that a new prompt continues from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from arpo_verl.engines.cpu.generation.kv_cache import KVShape, SequenceCache

# In tokens. Below this, copying costs about as much as computing.
MIN_SHARED = 16


def common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """Return how many leading entries two content arrays share."""
    size = min(len(left), len(right))
    differing = np.flatnonzero(left[:size] != right[:size])
    return int(differing[0]) if len(differing) else size


class PrefixStore:
    """Keeps the caches of finished sequences and drops the least recently used first.

    An episode's next turn takes over the cache of its last turn; rollouts of one task copy their common beginning from
    each other.
    """

    def __init__(self, shape: KVShape, max_tokens: int) -> None:
        self._shape = shape
        self._max_tokens = max_tokens
        self._idle: dict[int, SequenceCache] = {}  # in the order of last use

    @property
    def num_tokens(self) -> int:
        return sum(cache.length for cache in self._idle.values())

    def acquire(self, content: np.ndarray, running: Iterable[SequenceCache], room: int) -> SequenceCache:
        """Return a cache for a sequence that begins with `content`, filled as far as another cache has the same.

        At least the last token of `content` is left to compute, for its logits.

        Args:
            content: [tokens], the sequence's beginning.
            running: caches in use, which may be copied from.
            room: tokens to make room for beyond `content`.
        """
        usable, capacity = content[:-1], len(content) + room
        best, shared = None, 0
        for cache in [*self._idle.values(), *running]:
            length = common_prefix(cache.content, usable)
            # Of equals an idle cache that ends there is best: it can be taken over without a copy.
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
        """Keep a finished sequence's cache, if the bound on tokens allows it."""
        self._idle[id(cache)] = cache
        excess = self.num_tokens - self._max_tokens
        while excess > 0:
            excess -= self._idle.pop(next(iter(self._idle))).length

    def caches(self) -> list[SequenceCache]:
        """Return the caches of finished sequences."""
        return list(self._idle.values())

    def clear(self) -> None:
        self._idle.clear()
