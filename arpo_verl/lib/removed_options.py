"""Name options that went, and what to do instead. A recipe that has one is refused with these words.

To remove an option, add its full name here, and the reason or the option in its place. Its line may go a release later.
"""

from __future__ import annotations

_QUARANTINE = "the sessions of a task that breaks desktops are dropped after environment.max_attempts, as any other"

REMOVED = {
    "environment.quarantine_desktops": _QUARANTINE,
    "environment.quarantine_faults": _QUARANTINE,
    "environment.quarantine_s": _QUARANTINE,
    "gui_agent.engine_timeout_s": "if an engine hangs, the run now ends after gui_agent.stall_timeout_s",
}


def removal(name: str) -> str | None:
    """Return the message about a removed option, or about an option within one; None for any other name.

    Args:
        name: the full name of an option.
    """
    gone = next((known for known in REMOVED if f"{name}.".startswith(f"{known}.")), None)
    return gone and f"{gone} was removed: {REMOVED[gone]}; leave it out"
