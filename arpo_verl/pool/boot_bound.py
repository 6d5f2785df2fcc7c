"""How many desktops of a host boot at once: as many as it bears, which its boots' own times tell."""

from __future__ import annotations

import asyncio
import logging
import math
from statistics import median

logger = logging.getLogger(__name__)

FIRST = 8
"""Where nothing is known of a host, and after a boot that failed."""
# Of times that its boots take while few run: boots that take no longer than the one leave room for more, beyond the other
# each only makes the others slower.
ROOM, CROWDED = 1.5, 2.0
# What was quick long ago fades: a disk that filled, neighbours that work.
FADING = 1.05


class BootBound:
    """Lets boots of one host begin, in turn; an asynchronous context manager around each.

    As congestion control does (slow start, then additive increase and multiplicative decrease), but by times instead of
    losses: a host that is full makes all boots slower long before one fails. The bound doubles until boots are crowded for
    the first time, and from then on feels its way.

    Args:
        fixed: so many, whatever the boots take; None follows the host.
    """

    def __init__(self, host: str, fixed: int | None = None):
        self.limit = fixed or FIRST
        self._host = host
        self._is_fixed = fixed is not None
        self._free = asyncio.Semaphore(self.limit)
        self._surplus = 0
        """Boots that run beyond the bound, since it fell."""
        self._seconds: list[float] = []
        self._quick_s = math.inf
        self._was_crowded = False

    async def __aenter__(self) -> None:
        await self._free.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def took(self, seconds: float) -> None:
        """A boot succeeded, told before it is left: a look at them all after as many as run at once."""
        self._seconds.append(seconds)
        if self._is_fixed or len(self._seconds) < self.limit:
            return
        usual_s = median(self._seconds)
        self._seconds.clear()
        self._quick_s = min(usual_s, self._quick_s * FADING)
        if usual_s > self._quick_s * CROWDED:
            self._was_crowded = True
            self._move(max(FIRST, self.limit * 3 // 4))
        elif usual_s <= self._quick_s * ROOM and self._free.locked():
            self._move(self.limit + (1 if self._was_crowded else self.limit))

    def failed(self) -> None:
        """A boot did not come up."""
        self._seconds.clear()
        if not self._is_fixed:
            self._move(FIRST)

    def _move(self, limit: int) -> None:
        if limit == self.limit:
            return
        logger.info("host %s: %d boots at once instead of %d", self._host, limit, self.limit)
        change, self.limit = limit - self.limit, limit
        self._surplus += max(0, -change)
        for _ in range(change):
            self._give_back()

    def _give_back(self) -> None:
        if self._surplus:
            self._surplus -= 1
        else:
            self._free.release()
