"""The file `pool.json` shows people what every desktop of the pool is doing while a run goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arpo_verl.desktops.pool.lease_queue import LeaseQueue
from arpo_verl.desktops.pool.metrics import WAITING, PoolMetrics
from arpo_verl.desktops.pool.workers import Workers
from arpo_verl.lib.files import write_whole

logger = logging.getLogger(__name__)

# The pause between two looks at the pool; each writes the file at most once.
INTERVAL_S = 1.0
HEARTBEAT_S = 15.0
"""After so long we write the file even without a change: if it is much older, its pool is gone."""


def pool_document(
    workers: Workers, queue: LeaseQueue, metrics: PoolMetrics, dropped: Mapping[str, str]
) -> dict[str, Any]:
    """Return the pool's state at this moment, without the time."""
    tasks = {desktop.index: desktop.task_id for desktop in queue.leased.values()}
    return {
        "desktops": [
            {
                "name": f"desktop-{slot}.{workers.generations[slot]}",
                "host": workers.host_of(slot),
                "state": state.value,
                "task_id": tasks.get(slot),
                "since": since,
            }
            for slot, (state, since) in enumerate(metrics.states)
        ],
        "waiting": metrics.now[WAITING],
        "dropped": dict(sorted(dropped.items())),
    }


async def keep_status_file(path: Path, read: Callable[[], dict[str, Any]]) -> None:
    """Keep a file up to date, for ever; if the disk fails, only the file is lost, not the pool.

    Args:
        path: the file, which is replaced as a whole each time.
        read: returns the document, without its `time`.
    """
    written, written_at, complained = None, -math.inf, False
    while True:
        document, now = read(), time.monotonic()
        if document != written or now - written_at >= HEARTBEAT_S:
            written, written_at = document, now
            try:
                await asyncio.to_thread(_write, path, {"time": time.time(), **document})
            except OSError as error:
                if not complained:
                    complained = True
                    logger.warning("cannot write the pool's state to %s: %s", path, error)
        await asyncio.sleep(INTERVAL_S)


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(document).encode() + b"\n", sync=False)
