"""The job's desktops as the trainer's process sees them: booted ahead, and their counters logged with the step."""

from __future__ import annotations

import logging

import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import ConfigError, DesktopLostError

logger = logging.getLogger(__name__)


class JobDesktops:
    """Makes the job's desktop pool with the trainer, so that desktops boot while the model loads.

    The pool lives as long as the process that made it: the trainer's, not one of the rollout workers'.

    Args:
        environment: the recipe's section `environment`; None makes and reads nothing.

    Raises:
        ConfigError: for a Ray cluster that cannot hold the desktops.
    """

    def __init__(self, environment: EnvironmentConfig | None) -> None:
        self._pool = None
        if environment is not None and ray.is_initialized():
            from arpo_verl.pool.desktop_pool import DesktopPool
            from arpo_verl.pool.placement import check_cluster

            check_cluster(environment, ray.nodes())
            self._pool = DesktopPool.connect(environment)

    def check(self) -> None:
        """Ask whether a rollout, or the pool, found that the run cannot go on: only the trainer can end it.

        Raises:
            ConfigError: says why.
            DesktopLostError: the pool's own process died. Every session would fail, and veRL draw others without end.
        """
        if self._pool is None:
            return
        try:
            refusal = self._pool.refusal()
        except (ActorDiedError, OutOfMemoryError) as error:
            raise DesktopLostError(
                "The job's desktop pool died, and no desktop can be had without it. Start the same command again: it "
                f"resumes from the last checkpoint. Ray says: {error}"
            ) from error
        except ray.exceptions.RayError:  # as in `read`
            return
        if refusal:
            raise ConfigError(refusal)

    def read(self) -> dict[str, float]:
        """The pool's `environment/*` since the last call; nothing when there is no pool or it does not answer."""
        if self._pool is None:
            return {}
        try:
            return self._pool.metrics()
        except ray.exceptions.RayError as error:
            # A lost pool fails the rollouts loudly enough; the batch at hand is good.
            logger.warning("the desktop pool gave no metrics this step: %s", error)
            return {}
