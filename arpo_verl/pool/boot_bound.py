"""How many desktops of a host boot at once: as many as it bears, which its boots' own times tell."""

from __future__ import annotations

import asyncio
import logging
from statistics import median

logger = logging.getLogger(__name__)

FIRST = 8
"""Where nothing is known of a host, and after a boot that failed. Never fewer."""
# Looks at a bound that proved right before another is tried: what a host bears changes with its neighbours' work.
REST = 8


class BootBound:
    """Lets boots of one host begin, in turn; an asynchronous context manager around each.

    The bound climbs: it is right where its desktops come up at the highest rate, and among equals where fewest boot at
    once. From time to time another one is tried, first twice as high. The higher of two must bring half of what it
    would on a host without limits.

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
        self._earlier = 0
        """Boots to come that began under another bound, and tell nothing about this one."""
        self._seconds: list[float] = []
        self._start_anew()

    def _start_anew(self) -> None:
        self._settled, self._rate = FIRST, 0.0
        self._rests, self._goes_up, self._is_known = 1, True, False

    async def __aenter__(self) -> None:
        await self._free.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def took(self, seconds: float) -> None:
        """A boot succeeded, told before it is left; looked at together with as many as run at once."""
        if self._is_fixed:
            return
        if self._earlier:
            self._earlier -= 1
            return
        self._seconds.append(seconds)
        if len(self._seconds) >= self.limit:
            rate = self.limit / max(median(self._seconds), 1e-3)
            self._seconds.clear()
            if self._free.locked():  # else fewer boot than may
                self._judge(rate)

    def failed(self) -> None:
        """A boot did not come up."""
        if not self._is_fixed:
            self._start_anew()
            self._move(FIRST)

    def _judge(self, rate: float) -> None:
        """`rate`: desktops that come up a second under this bound."""
        if self.limit == self._settled:
            self._rate = rate
            self._rests -= 1
        else:
            (few, slow), (many, fast) = sorted(((self._settled, self._rate), (self.limit, rate)))
            is_worth_it = fast >= slow * (1 + many / few) / 2
            self._settled, self._rate = (many, fast) if is_worth_it else (few, slow)
            if self._settled == self.limit:
                self._rests = 0
            else:
                self._rests, self._goes_up, self._is_known = REST, not self._goes_up, True
        self._move(self._next() if self._rests <= 0 else self._settled)

    def _next(self) -> int:
        lower = max(FIRST, self._settled * 2 // 3)
        self._goes_up = self._goes_up or lower == self._settled
        higher = self._settled * 3 // 2 if self._is_known else self._settled * 2
        return higher if self._goes_up else lower

    def _move(self, limit: int) -> None:
        if limit == self.limit:
            return
        logger.info("host %s: %d boots at once instead of %d", self._host, limit, self.limit)
        change, self._earlier, self.limit = limit - self.limit, self.limit, limit
        self._seconds.clear()
        self._surplus += max(0, -change)
        for _ in range(change):
            self._give_back()

    def _give_back(self) -> None:
        if self._surplus:
            self._surplus -= 1
        else:
            self._free.release()
