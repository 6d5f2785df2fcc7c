"""What QEMU says by itself. A guest makes as much of it as it likes: hardly any is kept, and a flood ends it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Any

from arpo_verl.desktop.guest_process import Ended

SHUTDOWN = "SHUTDOWN"
DISK_ERROR = "BLOCK_IO_ERROR"
MOST_EVENTS = 10_000
"""Of a machine's life, which has tens. Some have no limit of QEMU's own: a guest's root makes one of every write to a
port of its board."""
_MOST_WORDS = 200


class Events:
    """A filter of events for QMP's client, which else keeps all of them for ever. It lets none pass."""

    def __init__(self, end: Callable[[], object]):
        """`end` ends a machine that floods us, or has stopped for its disk: it would only be waited for."""
        self._end = end
        self._count = 0
        self._first: dict[str, Mapping[str, Any]] = {}

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """Hear one."""
        self._count += 1
        name = event["event"]
        if name in (SHUTDOWN, DISK_ERROR):
            self._first.setdefault(name, _told(event.get("data")))
        if name == DISK_ERROR or self._count > MOST_EVENTS:
            self._end()
        return False

    def first(self, name: str) -> Mapping[str, Any]:
        """What the first `SHUTDOWN` or `DISK_ERROR` said; empty where there was none."""
        return self._first.get(name, {})

    def why_down(self) -> Ended | None:
        """What programs of the guest did to end their machine; None where nothing shows that they did."""
        if self._count > MOST_EVENTS:
            return Ended("its guest made its devices send events without end", True)
        if self.first(DISK_ERROR).get("reason") == os.strerror(errno.EFBIG):
            return Ended("its guest wrote more to its disk than environment.vm.disk_mib", True)
        shutdown = self.first(SHUTDOWN)
        if not shutdown.get("guest"):
            return None
        # A crash is a reset too, of the guest's kernel or of a state that was not restored rightly.
        return Ended(f"its guest ended it: {shutdown.get('reason')}", shutdown.get("reason") == "guest-shutdown")


def _told(data: Any) -> Mapping[str, Any]:
    """What is looked at of an event's data; a QEMU that its guest broke into sends anything for it."""
    data = data if isinstance(data, Mapping) else {}
    return {"guest": data.get("guest") is True, "reason": str(data.get("reason"))[:_MOST_WORDS]}
