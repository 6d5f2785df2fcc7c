"""What a run does before its first training step is recorded, and the last lines of its output."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.lib.untrusted import open_regular
from arpo_verl.records.layout import METRICS_FILE, OUTPUT_FILE, POOL_FILE, STARTS_FILE, TRAJECTORIES, step_of

LAST_LINES = 40
REFUSED = "arpo_verl: "
"""How `plugin.run_callback` begins when it refuses a recipe. Nothing follows that message."""
_TAIL_BYTES = 64 << 10
_MOST_BYTES = 1 << 50
# Colours, and other sequences that control a terminal.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[^\n\t\x20-\x7e\xa0-\U0010ffff]")
_PHASES = {
    TRAJECTORIES: "plays its first episodes",
    METRICS_FILE: "is about to play its first episodes",
    POOL_FILE: "boots its desktops and loads the model",
    STARTS_FILE: "starts Ray and its workers",
    OUTPUT_FILE: "imports the trainer and checks the recipe",
}
"""What the run does once it has this file or folder, the latest first."""


@dataclass(frozen=True)
class Start:
    """What a run does before its first training step is recorded."""

    phase: str
    """A verb and what follows, for a sentence about the run."""
    quiet_s: float | None
    """Seconds since the last output; None if `arpo-verl train` did not start the run."""
    lines: list[str]
    """The last lines of the output."""


def read_start(run_dir: Path) -> Start | None:
    """Return what a run does before its first training step; None from then on, and if no trainer wrote the folder."""
    there = [name for name in _PHASES if (run_dir / name).exists()]
    has_begun = STARTS_FILE in there or OUTPUT_FILE in there
    has_metrics = METRICS_FILE in there and (run_dir / METRICS_FILE).stat().st_size > 0
    has_trained = any(step_of(path.name) for path in (run_dir / TRAJECTORIES).glob("step_*"))
    if not has_begun or has_metrics or has_trained:
        return None
    phase = _PHASES[there[0]]
    try:
        quiet_s = max(0.0, time.time() - (run_dir / OUTPUT_FILE).stat().st_mtime)
        lines = last_lines(run_dir / OUTPUT_FILE)
        if there[0] == OUTPUT_FILE and any(line.startswith(REFUSED) for line in lines):
            phase = "was refused, for the reason in its last lines, or is just starting again"
        return Start(phase, quiet_s, lines)
    except OSError:
        return Start(phase, None, [])


def last_lines(log: Path, count: int = LAST_LINES, since: int = 0) -> list[str]:
    """Return the last lines of an output; of lines that a progress bar overwrote, the last state.

    Args:
        since: the byte where the output begins.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(log, _MOST_BYTES) as file:
        end = file.seek(0, 2)
        file.seek(max(since, end - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip("\n").split("\n")]
    return [_CONTROL.sub("", line) for line in lines[-count:]]
