"""This formats commands that other commands print, so that users can type them unchanged."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def shown_command(name: str, *words: str | Path) -> str:
    """Return a command of ours, with its folder if that is not on the path, as after `make demo`."""
    program = "arpo-verl" if shutil.which("arpo-verl") else os.path.relpath(Path(sys.executable).with_name("arpo-verl"))
    return shlex.join([program, name, *map(str, words)])
