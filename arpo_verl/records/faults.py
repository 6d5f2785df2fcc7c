"""Why starts of a run ended early: each fault adds a line to the run's `faults.jsonl`.

The process that ends the run writes it there, because what it prints may be lost when it ends at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.records.json_files import append_objects, as_number, read_objects
from arpo_verl.records.layout import FAULTS_FILE
from arpo_verl.untrusted import printable


@dataclass(frozen=True)
class Fault:
    """One fault that ended a start of a run."""

    time: float
    """Unix time in seconds."""
    sentence: str
    """What happened and what to do, on one line."""


def note_fault(run_dir: Path, sentence: str) -> None:
    """Append a fault, with the present time. It is in the file even if this process then ends at once.

    Raises:
        OSError: the file cannot be written.
    """
    append_objects(run_dir / FAULTS_FILE, [{"time": time.time(), "sentence": sentence}])


def read_faults(run_dir: Path) -> list[Fault]:
    """Return the run's faults, the oldest first, without damaged lines; empty without a file."""
    return [fault for line in read_objects(run_dir / FAULTS_FILE) if (fault := _fault(line)) is not None]


def _fault(line: dict[str, object]) -> Fault | None:
    at, sentence = as_number(line.get("time")), line.get("sentence")
    return Fault(at, printable(sentence)) if at is not None and isinstance(sentence, str) else None
