"""Counters of what the pool's desktops did since the last training step. Pure."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from arpo_verl.errors import (
    ConfigError,
    DesktopBootError,
    DesktopEndedError,
    DesktopError,
    DesktopLostError,
    DesktopSetupError,
    DesktopUnclearError,
    EvaluatorError,
    HostLostError,
)

Fault = type[DesktopError] | type[DesktopEndedError] | type[ConfigError]
"""Why a lease ended early. With `DesktopEndedError` no desktop failed: the policy ended it, so it is thrown away."""
FAULT_KINDS: Mapping[str, type[DesktopError]] = {
    "boot": DesktopBootError,
    "setup": DesktopSetupError,
    "lost": DesktopLostError,
    "evaluator": EvaluatorError,
    "host": HostLostError,
    "unclear": DesktopUnclearError,
}
_KIND_OF: Mapping[Fault, str] = {error: kind for kind, error in FAULT_KINDS.items()}
# Each class stands before its base classes.
_FAULTS: tuple[Fault, ...] = (*reversed([*_KIND_OF]), DesktopError, DesktopEndedError, ConfigError)
SET_UP_FAULTS = (DesktopBootError, DesktopSetupError, DesktopLostError)
"""Faults of a set-up that its host may have caused."""
IDLE = "idle"
"""The kind of a fault without an episode: a health check found the desktop dead."""
WAITING = "rollouts_waiting"
COUNTS = ("dropped_sessions", "leases_reclaimed", "loop_restarts", "ended_desktops")
CALLS = ("boot", "reset", "step", "evaluate")


class DesktopState(StrEnum):
    """The state of a slot of the pool."""

    UNPLACED = "unplaced"
    """No node has room for it."""
    BOOTING = "booting"
    """Its worker starts, or its desktop boots or is cleaned, or waits its turn for that."""
    IDLE = "idle"
    BUSY = "busy"
    DEAD = "dead"
    """It or its boot failed, and it is being thrown away; then the slot boots again, perhaps after a pause."""

    @property
    def level(self) -> str:
        """The name of the metric that counts desktops in this state."""
        return f"desktops_{self.value}"


@dataclass(frozen=True)
class LeaseReport:
    """A holder reports this when it gives back its desktop.

    Attributes:
        fault: what ended the lease early, or None.
        seconds: seconds of each successful call, by name (`reset`, `step`, `evaluate`).
        message: the fault's message.
        interrupted: whether the holder left during a call, without a fault: the desktop may be busy for long.
    """

    fault: Fault | None = None
    seconds: Mapping[str, list[float]] = field(default_factory=dict)
    interrupted: bool = False
    message: str = ""

    @property
    def was_set_up(self) -> bool:
        """Return whether the desktop was set up for the task."""
        return bool(self.seconds.get("reset"))


class PoolMetrics:
    """Counts between two calls of `collect`.

    Args:
        num_desktops: how many the pool has.
        clock: seconds that only grow.
    """

    def __init__(self, num_desktops: int, clock: Callable[[], float] = time.monotonic):
        self._num_desktops = num_desktops
        self._clock = clock
        self._levels = {**dict.fromkeys((state.level for state in DesktopState), 0), WAITING: 0}
        self._levels[DesktopState.UNPLACED.level] = num_desktops
        self._states = [(DesktopState.UNPLACED, time.time())] * num_desktops
        self._clear()

    def call_done(self, call: str, seconds: float) -> None:
        self._seconds[call].append(seconds)

    def fault(self, fault: Fault) -> None:
        """Count a fault by its kind; one of unknown kind counts as `lost`."""
        is_end = fault is DesktopEndedError
        self.count("ended_desktops" if is_end else f"faults/{_KIND_OF.get(fault, 'lost')}")

    def count(self, name: str) -> None:
        """Count one more of `COUNTS`, or of a kind of faults."""
        self._counts[name] += 1

    def desktop_is(self, slot: int, state: DesktopState) -> None:
        """Note a slot's new state."""
        before, _ = self._states[slot]
        if state is before:
            return
        self._spend()
        self._levels[before.level] -= 1
        self._levels[state.level] += 1
        self._states[slot] = (state, time.time())

    def rollouts_wait(self, number: int) -> None:
        """Note how many rollouts wait for a desktop now."""
        self._spend()
        self._levels[WAITING] = number

    def lease_began(self, slot: int, waited_s: float) -> None:
        self.desktop_is(slot, DesktopState.BUSY)
        self._waits.append(waited_s)

    def lease_ended(self, report: LeaseReport) -> None:
        """Count the report of a lease."""
        for call, seconds in report.seconds.items():
            self._seconds[call].extend(seconds)
        if report.fault is not None:
            self.fault(report.fault)

    @property
    def states(self) -> list[tuple[DesktopState, float]]:
        """Return each slot's state, and the Unix time since which it has that."""
        return list(self._states)

    @property
    def now(self) -> dict[str, int]:
        """Return how many desktops are in each state, and how many rollouts wait, at this moment."""
        return dict(self._levels)

    def collect(self) -> dict[str, float]:
        """Return the counters since the last call, named `environment/...`; times in seconds, shares in [0, 1].

        `desktops_*` and `rollouts_waiting` are means over that time: a training step asks after its rollouts, when
        nothing waits or works any more.
        """
        self._spend()
        elapsed_s = max(self._clock() - self._since, 1e-9)
        values: dict[str, float] = {name: self._spent[name] / elapsed_s for name in self._levels}
        values |= {
            "leases": len(self._waits),
            "lease_wait_s/mean": _mean(self._waits),
            "lease_wait_s/max": max(self._waits, default=0.0),
            "busy_share": values[DesktopState.BUSY.level] / self._num_desktops,
        }
        for name in COUNTS:
            values[name] = self._counts[name]
        for kind in (*FAULT_KINDS, IDLE):
            values[f"faults/{kind}"] = self._counts[f"faults/{kind}"]
        for call in CALLS:
            values[f"{call}s" if call != "evaluate" else "evaluations"] = len(self._seconds[call])
            values[f"{call}_s/mean"] = _mean(self._seconds[call])
        self._clear()
        return {f"environment/{name}": float(value) for name, value in values.items()}

    def _clear(self) -> None:
        self._since = self._last_change = self._clock()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._waits: list[float] = []
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    def _spend(self) -> None:
        """Add each level, times the time since the last change, to its sum."""
        now = self._clock()
        for name, level in self._levels.items():
            self._spent[name] += level * (now - self._last_change)
        self._last_change = now


def fault_of(error: BaseException) -> Fault | None:
    """Return the fault that an error stands for, as the nearest class of this package; None if it is no fault."""
    return next((kind for kind in _FAULTS if isinstance(error, kind)), None)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
