"""Keeps the pool's loops alive: what one of them raises costs it a pause, not the job's desktops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

# Pause before a loop is started again: 0.5, 1, 2, ... seconds, and from the first again once it has run for so long.
PAUSE_FIRST_S, PAUSE_MAX_S, SOUND_S = 0.5, 30.0, 60.0
# So many failures in a row are no accident: whoever waits is told.
HOPELESS = 8


class Supervisor:
    """Runs loops, each in a task of its own, and starts one that raised anew.

    Args:
        on_restart: called once a restart.
        on_hopeless: told what fails, at each failure of a loop that has failed `HOPELESS` times in a row.
    """

    def __init__(self, on_restart: Callable[[], None], on_hopeless: Callable[[str], None]):
        self._on_restart = on_restart
        self._on_hopeless = on_hopeless
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop` until it returns."""
        task = asyncio.create_task(self._keep(name, loop))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Cancel all of them."""
        for task in self._tasks:
            task.cancel()

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                return await loop()
            except Exception as error:
                failures = 1 if time.monotonic() - began > SOUND_S else failures + 1
                logger.exception("the desktop pool's %s failed, for the %d. time in a row; it goes on", name, failures)
                if failures >= HOPELESS:
                    self._on_hopeless(
                        f"the desktop pool's {name} has failed {failures} times in a row, which is a bug or a broken "
                        f"Ray: {type(error).__name__}: {error}"
                    )
            self._on_restart()
            await asyncio.sleep(min(PAUSE_FIRST_S * 2 ** (failures - 1), PAUSE_MAX_S))
