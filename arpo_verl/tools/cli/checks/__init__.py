"""The checks of `arpo-verl doctor`, one module for each subject: packages, the machine, a recipe, tasks.

`tools/cli/doctor.py: run` prints each `Finding`, with what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A line of the report; `remedy` says what to do if not `ok`. `required` ones decide the exit status."""

    subject: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True
