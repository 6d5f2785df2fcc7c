"""A desktop pool without a trainer: over a Ray of its own, or a cluster that runs already."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

import ray

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.pool.desktop_pool import DesktopPool
from arpo_verl.pool.placement import check_cluster

_STARTS = 3


@contextlib.contextmanager
def own_pool(config: EnvironmentConfig) -> Iterator[DesktopPool]:
    """The desktops of `config`, booting from now on and closed with the block.

    Where `RAY_ADDRESS` names a cluster they are spread over it, as a trainer's; else Ray is started here, and ends with
    this process however that ends. A Ray that this process has is left as it is.

    Raises:
        ConfigError: the cluster cannot hold the desktops.
    """
    is_ours = not ray.is_initialized()
    if is_ours:
        _start()
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


def _start() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    for start in range(1, _STARTS + 1):
        try:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
            return
        except Exception:  # it gives itself 30 s, and has no option to wait longer for a busy machine
            ray.shutdown()
            if start == _STARTS:
                raise
