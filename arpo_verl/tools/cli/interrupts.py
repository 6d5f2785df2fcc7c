"""This ends a command that holds desktops properly when it is interrupted."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

INTERRUPTED = 130
"""The exit status after an interrupt."""


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block as Ctrl-C does after a closed terminal or a `kill`: by an exception, which closes desktops."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    earlier = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
