"""What several commands share: how they show other commands, and how an interrupt ends them."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path


def shown_command(name: str, *words: str | Path) -> str:
    """Return a command of ours to type unchanged, with its folder if that is not on the path, as after `make demo`."""
    program = "arpo-verl" if shutil.which("arpo-verl") else os.path.relpath(Path(sys.executable).with_name("arpo-verl"))
    return shlex.join([program, name, *map(str, words)])


@contextlib.contextmanager
def ended_by_signals(*remedy: str) -> Iterator[None]:
    """End the block as Ctrl-C does after a closed terminal or a `kill`: by an exception, which closes desktops.

    Args:
        remedy: what the user reads behind "interrupted".
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    earlier = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(*remedy) from error
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
