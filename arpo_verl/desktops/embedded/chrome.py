"""In the sandbox, Debian's Chromium replaces OSWorld's Google Chrome; `guest/programs/google-chrome` starts it.

Tasks and their evaluators end the browser by `pkill chrome`. A process of Chromium has the name of its program's file,
with links resolved. So we show the program under another name, with the files beside it on disk.
"""

from __future__ import annotations

import os
from pathlib import Path

NAME = "google-chrome"
CHROMIUM = Path("/usr/lib/chromium")
PROGRAM = "chromium"
CHROME = Path("/opt/google/chrome/google-chrome")


def is_installed() -> bool:
    """Return whether a desktop's `google-chrome` finds a browser to start."""
    return os.access(CHROME, os.X_OK) or os.access(CHROMIUM / PROGRAM, os.X_OK)


def mounts(folder: str) -> list[str]:
    """Return bubblewrap's arguments for a folder with Chromium as `chrome`; none if it is not installed."""
    if not (CHROMIUM / PROGRAM).is_file():
        return []
    words = ["--perms", "0755", "--dir", folder, "--ro-bind", str(CHROMIUM / PROGRAM), f"{folder}/chrome"]
    for path in sorted(CHROMIUM.iterdir()):
        if path.name != PROGRAM:
            words += ["--symlink", str(path), f"{folder}/{path.name}"]
    return words
