"""`asyncio.Barrier`, which Python 3.10 lacks."""

import asyncio


class Barrier:
    """`wait` returns when as many as `parties` wait, and again for the next as many."""

    def __init__(self, parties):
        self._parties, self._waiting, self._opens = parties, 0, asyncio.Event()

    async def wait(self):
        opens, self._waiting = self._opens, self._waiting + 1
        if self._waiting == self._parties:
            self._waiting, self._opens = 0, asyncio.Event()
            opens.set()
        await opens.wait()
