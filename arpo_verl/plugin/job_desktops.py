"""The job's desktop pool, as the trainer's process makes and asks it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import ray

from arpo_verl.errors import ConfigError

if TYPE_CHECKING:
    from arpo_verl.desktops.config import EnvironmentConfig

logger = logging.getLogger(__name__)


class JobDesktops:
    """Makes the job's desktop pool together with the trainer, so that desktops boot while the model loads.

    The pool lives as long as the process that made it. So the trainer makes it, not a rollout worker.

    Args:
        environment: the recipe's section `environment`; with None there is no pool.

    Raises:
        ConfigError: the Ray cluster has no room for the desktops.
    """

    def __init__(self, environment: EnvironmentConfig | None) -> None:
        self._pool = None
        if environment is not None and ray.is_initialized():
            from arpo_verl.desktops.pool.desktop_pool import DesktopPool
            from arpo_verl.desktops.pool.placement import check_cluster

            check_cluster(environment, ray.nodes())
            self._pool = DesktopPool.connect(environment)

    def check(self) -> None:
        """Ask whether a rollout or the pool found that the run cannot go on. Only the trainer can end it.

        Raises:
            ConfigError: says why.
        """
        if self._pool is None:
            return
        try:
            refusal = self._pool.refusal()
        except ray.exceptions.RayError:  # if it died, `RunWatch` ends the run
            return
        if refusal:
            raise ConfigError(refusal)

    def read(self) -> dict[str, float]:
        """Return the pool's `environment/*` since the last call; empty without a pool, or if it does not answer."""
        if self._pool is None:
            return {}
        try:
            return self._pool.metrics()
        except ray.exceptions.RayError as error:
            logger.warning("the desktop pool gave no metrics this step: %s", error)
            return {}
