"""What several tests use: harnesses, stand-ins, and rows written by hand."""

import signal
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""


def take_interrupts() -> None:
    """For `Popen(preexec_fn=...)`: as at a terminal. What a script starts in the background ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
