"""A command that holds desktops and is interrupted."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

INTERRUPTED = 130
"""The exit status then."""


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """A closed terminal or a `kill` ends the block as Ctrl-C does: by an exception, so that desktops are closed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    earlier = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
