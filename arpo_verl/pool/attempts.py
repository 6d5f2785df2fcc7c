"""One episode's attempts, each on a fresh desktop: alike in training and in evaluation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import DesktopError, DesktopUnclearError, EvaluatorError
from arpo_verl.pool.desktop_pool import DesktopPool, Session

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def attempt_until_whole(
    pool: DesktopPool,
    config: EnvironmentConfig,
    task_id: str,
    attempt: Callable[[Session, int], Awaitable[T]],
    batch: int = 0,
) -> T:
    """What an attempt returns that no desktop failed.

    Args:
        config: says how many attempts there are, and how long to rest between them.
        attempt: given the session to lease a desktop from, and how many attempts before were lost, perhaps by the
            policy's doing.
        batch: number of the training step that it is for: the lowest is served first.

    Raises:
        DesktopError: `environment.max_attempts` desktops failed; nothing is scored.
        TaskQuarantinedError: the task has broken desktops repeatedly; nothing is scored.
        GenerationError: the policy's engine gave no usable reply; nothing is scored.
    """
    session = pool.session(task_id, batch)
    unclear_losses = 0
    while True:
        try:
            return await attempt(session, unclear_losses)
        except DesktopError as error:
            # A metric that breaks may have been given a file that was broken on purpose.
            unclear_losses += isinstance(error, (DesktopUnclearError, EvaluatorError))
            faults = await session.count_faults()
            kind, most = type(error).__name__, config.max_attempts
            logger.warning("task %s, fault %d of %d: %s: %s", task_id, faults, most, kind, error)
            if faults >= most:
                raise
        await asyncio.sleep(config.retry_backoff_s * 2 ** max(0, faults - 1))
