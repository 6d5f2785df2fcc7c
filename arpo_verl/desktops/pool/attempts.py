"""An episode's attempts, each on a fresh desktop, in the same way in training and evaluation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.desktop_pool import DesktopPool, Session
from arpo_verl.errors import DesktopError, DesktopUnclearError, EvaluatorError

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def attempt_until_whole(
    pool: DesktopPool,
    config: EnvironmentConfig,
    task_id: str,
    attempt: Callable[[Session, int], Awaitable[T]],
    batch: int = 0,
) -> T:
    """Repeat an episode until no desktop fails it, and return that attempt's result.

    Args:
        config: for the number of attempts, and the pause between them.
        attempt: called with the session to lease a desktop from, and the number of earlier attempts that the policy may
            have broken itself.
        batch: number of its training step: the pool serves the lowest first.

    Raises:
        DesktopError: `environment.max_attempts` desktops failed, so there is no score.
        GenerationError: the policy's engine gave no usable reply, so there is no score.
    """
    session = pool.session(task_id, batch)
    unclear_losses = 0
    while True:
        try:
            return await attempt(session, unclear_losses)
        except DesktopError as error:
            # The policy may have broken a file on purpose, to break a metric.
            unclear_losses += isinstance(error, (DesktopUnclearError, EvaluatorError))
            faults = await session.count_faults()
            kind, most = type(error).__name__, config.max_attempts
            logger.warning("task %s, fault %d of %d: %s: %s", task_id, faults, most, kind, error)
            if faults >= most:
                raise
        await asyncio.sleep(config.retry_backoff_s * 2 ** max(0, faults - 1))
