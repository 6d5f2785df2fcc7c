"""What several tests use: harnesses, stand-ins, and rows written by hand."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
"""The repository."""

needs_words = pytest.mark.skipif(
    importlib.util.find_spec("mm_agents") is None,
    reason="the models' own words are in desktop-env: arpo-verl install-osworld",
)


def take_interrupts() -> None:
    """For `Popen(preexec_fn=...)`: as at a terminal. What a script starts in the background ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def loading(module: str, **variables: str) -> dict[str, str]:
    """Return the variables with which a trainer loads a module of `support` beside our plugin."""
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"VERL_USE_EXTERNAL_MODULES": f"support.{module}", "PYTHONPATH": path, **variables}
