"""Filter QEMU's events. A guest can cause any number of them, so few are kept, and a flood ends it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Any

from arpo_verl.desktops.machine_provider import Ended

SHUTDOWN = "SHUTDOWN"
DISK_ERROR = "BLOCK_IO_ERROR"
MOST_EVENTS = 10_000
"""Most events of a machine, which usually has tens. QEMU does not limit some: a guest's root causes one with every
write to a port of its board."""
_MOST_WORDS = 200


class Events:
    """A filter that lets no event pass to QMP's client, which would keep all of them for ever."""

    def __init__(self, end: Callable[[], object]):
        """`end` ends a machine that sends too many events, or that stopped at a disk error and would never go on."""
        self._end = end
        self._count = 0
        self._first: dict[str, Mapping[str, Any]] = {}

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """Count one event, and keep what is needed of it."""
        self._count += 1
        name = event["event"]
        if name in (SHUTDOWN, DISK_ERROR):
            self._first.setdefault(name, _told(event.get("data")))
        if name == DISK_ERROR or self._count > MOST_EVENTS:
            self._end()
        return False

    def first(self, name: str) -> Mapping[str, Any]:
        """Return the data of the first `SHUTDOWN` or `DISK_ERROR`; empty if there was none."""
        return self._first.get(name, {})

    def why_down(self) -> Ended | None:
        """Return what the guest's programs did to end their machine; None if nothing shows that they did."""
        if self._count > MOST_EVENTS:
            return Ended("its guest made its devices send events without end", True)
        if self.first(DISK_ERROR).get("reason") == os.strerror(errno.EFBIG):
            return Ended("its guest wrote more to its disk than environment.vm.disk_mib", True)
        shutdown = self.first(SHUTDOWN)
        if not shutdown.get("guest"):
            return None
        # A crash of the guest's kernel, or of a wrongly restored state, is a reset too and so proves nothing.
        return Ended(f"its guest ended it: {shutdown.get('reason')}", shutdown.get("reason") == "guest-shutdown")


def _told(data: Any) -> Mapping[str, Any]:
    """Return the needed part of an event's data, which may be anything if the guest broke into QEMU."""
    data = data if isinstance(data, Mapping) else {}
    return {"guest": data.get("guest") is True, "reason": str(data.get("reason"))[:_MOST_WORDS]}
