"""The desktops' counters, logged with the training step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray

from arpo_verl.config import build_config
from arpo_verl.environments.config import EnvironmentConfig

logger = logging.getLogger(__name__)


class DesktopMetrics:
    """Reads the counters of the job's desktop pool where the rollouts have made one; never makes one itself.

    Args:
        environment: the recipe's section `environment`; None reads nothing.

    Raises:
        ConfigError: for a bad value in it.
    """

    def __init__(self, environment: Mapping[str, Any] | None) -> None:
        self._config = None if environment is None else build_config(EnvironmentConfig, "environment", environment)

    def read(self) -> dict[str, float]:
        """The pool's `environment/*` since the last call; nothing when there is no pool or it does not answer."""
        if self._config is None or not ray.is_initialized():
            return {}
        from arpo_verl.environments.pool import POOL_NAME, DesktopPool

        try:
            ray.get_actor(POOL_NAME)
        except ValueError:  # Ray's word for: no actor of this name
            return {}
        try:
            return DesktopPool.connect(self._config).metrics()
        except ray.exceptions.RayError as error:
            # A lost pool fails the rollouts loudly enough; the batch at hand is good.
            logger.warning("the desktop pool gave no metrics this step: %s", error)
            return {}
