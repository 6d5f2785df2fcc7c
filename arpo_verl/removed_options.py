"""Options that earlier checkouts had, and why they went: a recipe that still names one is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping

REMOVED: Mapping[str, str] = {
    "replay.mode": "rollouts that began within a success ended 25 points below injected successes (docs/learning.md)",
    "replay.resume_after": "it belonged to replay.mode=resume",
    "replay.resume_stride": "it belonged to replay.mode=resume",
    "replay.resume_solved": "it belonged to replay.mode=resume",
    "replay.resume_tolerance": "it belonged to replay.mode=resume",
}


def removal(name: str) -> str | None:
    """The message about a removed option, by its full name; None for any other name."""
    return f"{name} was removed: {REMOVED[name]}; leave it out" if name in REMOVED else None
