"""Print how to continue when a run loses Ray's head.

Ray then ends all processes of the run after 60 s, the driver too, and Python code is not notified. The last line is
"Failed to connect to GCS within 60 seconds". So the driver checks whether anything listens at the head's port.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from arpo_verl.records.layout import saved_step

POLL_S = 5.0
_CONNECT_S = 5.0
_REFUSALS = 3
"""Refused connections in a row after which the head counts as gone."""


class HeadWatch:
    """Watches in a thread of its own, once this process has joined a Ray cluster.

    Args:
        checkpoints: the run's folder of checkpoints, for the message.
        address: returns the head's `host:port`, or None before this process knows it.
        poll_s: seconds between two looks.
    """

    def __init__(
        self, checkpoints: Path, address: Callable[[], str | None] | None = None, poll_s: float = POLL_S
    ) -> None:
        self._checkpoints, self._address, self._poll_s = checkpoints, address or _head_address, poll_s
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="arpo_verl-head", daemon=True).start()

    def _watch(self) -> None:
        refusals = 0
        while refusals < _REFUSALS:
            if self._ended.wait(self._poll_s):
                return
            address = self._address()
            refusals = 0 if address is None or _listens(address) else refusals + 1
        saved = saved_step(self._checkpoints)
        where = "begins anew, since nothing was saved yet" if saved is None else f"resumes after step {saved}"
        print(
            "arpo_verl: Ray's head process (gcs_server) has ended, so Ray ends this run within a minute. The same "
            f"command {where}. If it happens again, check whether the head's machine runs out of memory.",
            flush=True,
        )

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _head_address() -> str | None:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    try:
        return str(ray.get_runtime_context().gcs_address)
    except Exception:  # Ray is just starting or ending, or is reached through a client
        return None
