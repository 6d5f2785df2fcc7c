"""What ended a run, in a sentence, where its last lines show one of a few common causes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_NO_HUB = re.compile(r"couldn't connect to 'http|outgoing traffic has been disabled|LocalEntryNotFoundError")
_PORT = re.compile(r"Address already in use|EADDRINUSE")


def explain_end(lines: Sequence[str], run_dir: Path, model: str) -> list[str]:
    """A sentence for each known cause, with what to do.

    Args:
        lines: the last ones that the trainer printed.
        run_dir: the run's folder.
        model: as the recipe names it.
    """
    text, found = "\n".join(lines), []
    if _FULL.search(text):
        free = shutil.disk_usage(run_dir).free // 2**20
        found.append(
            f"a disk is full ({run_dir} has {free} MiB left; `df -h` shows the others); free some space, then run the "
            "same command again"
        )
    if _NO_HUB.search(text):
        found.append(
            f"there is no network to the model hub, and {model} is not on this machine; where there is one, run "
            f"`hf download {model} --local-dir FOLDER`, then add actor_rollout_ref.model.path=FOLDER"
        )
    if _PORT.search(text):
        found.append("another program uses a port that the run needs; `ss -ltnp` shows which, stop it and start again")
    return found
