"""How many desktops of a host boot at once: as many as it bears, which its boots' own times tell."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from statistics import median

logger = logging.getLogger(__name__)

FIRST = 8
"""Where nothing is known of a host, and after boots that failed. Never fewer."""
IN_A_ROW = 3
"""Boots that fail one after the other are the host's. One now and then has other reasons."""
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
        self._running = 0
        """More than the bound just after it fell."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._most = 0
        """That ever wanted to boot at once: a bound above is never reached, so never judged."""
        self._earlier = 0
        """Boots to come that began under another bound, and tell nothing about this one."""
        self._seconds: list[float] = []
        """Of those that began under this one; infinite where one failed."""
        self._failures = 0
        self._start_anew()

    def _start_anew(self) -> None:
        self._settled, self._rate = FIRST, 0.0
        self._rests, self._goes_up, self._is_known = 1, True, False

    async def __aenter__(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._most = max(self._most, self._running + len(self._waiting))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had just come
                await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._running -= 1
        self._admit()

    def took(self, seconds: float) -> None:
        """A boot succeeded, told before it is left; looked at together with as many as run at once."""
        self._failures = 0
        self._tell(seconds)

    def failed(self) -> None:
        """A boot did not come up."""
        self._failures += 1
        self._tell(math.inf)
        if self._failures >= IN_A_ROW and not self._is_fixed:
            self._start_anew()
            self._move(FIRST)

    def _tell(self, seconds: float) -> None:
        if self._is_fixed:
            return
        if self._earlier:
            self._earlier -= 1
            return
        self._seconds.append(seconds)
        if len(self._seconds) >= self.limit:
            came_up = [seconds for seconds in self._seconds if seconds < math.inf]
            self._seconds.clear()
            if came_up and self._running >= self.limit:  # else fewer boot than may
                self._judge(len(came_up) / max(median(came_up), 1e-3))

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
        if not self._goes_up:
            return lower
        higher = self._settled * 3 // 2 if self._is_known else self._settled * 2
        return max(self._settled, min(higher, self._most))

    def _move(self, limit: int) -> None:
        if limit == self.limit:
            return
        logger.info("host %s: %d boots at once instead of %d", self._host, limit, self.limit)
        self._earlier, self.limit = self.limit, limit
        self._seconds.clear()
        self._admit()

    def _admit(self) -> None:
        while self._running < self.limit and self._waiting:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                self._running += 1
                turn.set_result(None)
