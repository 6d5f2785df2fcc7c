"""Why starts of a run ended early: each fault adds a line to the run's `faults.jsonl`.

The process that ends the run writes it there, because what it prints may be lost when it ends at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from arpo_verl.lib.untrusted import printable
from arpo_verl.records.json_files import Number, append_objects, read_lines
from arpo_verl.records.layout import FAULTS_FILE


@dataclass(frozen=True)
class Fault:
    """One fault that ended a start of a run."""

    time: Number
    """Unix time in seconds."""
    sentence: str
    """What happened and what to do, on one line."""
    lasts: bool = False
    """Whether another start would meet it again."""


def note_fault(run_dir: Path, sentence: str, lasts: bool = False) -> None:
    """Append a fault, with the present time. It is in the file even if this process then ends at once.

    Raises:
        OSError: the file cannot be written.
    """
    append_objects(run_dir / FAULTS_FILE, [{"time": time.time(), "sentence": sentence, "lasts": lasts}])


def read_faults(run_dir: Path) -> list[Fault]:
    """Return the run's faults, the oldest first, without damaged lines; empty without a file."""
    return [replace(line, sentence=printable(line.sentence)) for line in read_lines(run_dir / FAULTS_FILE, Fault)]
