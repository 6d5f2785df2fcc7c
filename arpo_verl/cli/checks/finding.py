"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the report; `remedy` is what to do where `ok` is False. `required` ones decide the exit status."""

    subject: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True
