"""The nearest known name to one that is not known, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean NAME?)`, or nothing where no known name is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.8)
    return f" (did you mean {close[0]}?)" if close else ""
