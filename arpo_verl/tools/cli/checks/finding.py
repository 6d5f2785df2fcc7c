"""A finding is one line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """This is one line of the report; `remedy` says what to do if not `ok`. `required` ones decide the exit status."""

    subject: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True
