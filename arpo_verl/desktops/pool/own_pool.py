"""A pool of desktops without a trainer, as an evaluation uses it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import ray

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.desktop_pool import DesktopPool
from arpo_verl.desktops.pool.placement import check_cluster
from arpo_verl.lib.own_ray import settle_ray_token, start_ray


@contextlib.contextmanager
def own_pool(config: EnvironmentConfig) -> Iterator[DesktopPool]:
    """Make a pool without a trainer; its desktops boot from now on and close with the block.

    If `RAY_ADDRESS` names a cluster, the desktops are spread over it, as a trainer's are. Otherwise it starts Ray here,
    which ends with this process in any case. If this process has a Ray already, it uses that and does not end it.

    Raises:
        ConfigError: the cluster has no room for the desktops.
    """
    is_ours = not ray.is_initialized()
    if is_ours:
        address = os.environ.get("RAY_ADDRESS")
        settle_ray_token(joins=address is not None)
        options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
        if address is not None:
            ray.init(address=address, **options)
        else:
            start_ray(ray.init, address="local", **options)
    try:
        check_cluster(config, ray.nodes())
        pool = DesktopPool.connect(config)
        try:
            yield pool
        finally:
            pool.close()
    finally:
        if is_ours:
            ray.shutdown()
