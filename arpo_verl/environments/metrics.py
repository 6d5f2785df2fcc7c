"""The pool's counters: what desktops did since the last training step. Pure."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from arpo_verl.errors import DesktopBootError, DesktopError, DesktopLostError, DesktopSetupError, EvaluatorError

FAULT_KINDS: dict[str, type[DesktopError]] = {
    "boot": DesktopBootError,
    "setup": DesktopSetupError,
    "lost": DesktopLostError,
    "evaluator": EvaluatorError,
}
_KIND_OF = {cls.__name__: kind for kind, cls in FAULT_KINDS.items()}
CALLS = ("boot", "reset", "step", "evaluate")


@dataclass(frozen=True)
class LeaseReport:
    """What its holder did with a leased desktop.

    Attributes:
        fault: the `DesktopError` class's name that ended the lease, or None.
        seconds: by call (`reset`, `step`, `evaluate`), what each took in seconds.
    """

    fault: str | None = None
    seconds: Mapping[str, list[float]] = field(default_factory=dict)


class PoolMetrics:
    """Counts between two calls of `collect`.

    Args:
        num_desktops: how many the pool has, for `busy_share`.
        clock: seconds that only grow.
    """

    def __init__(self, num_desktops: int, clock: Callable[[], float] = time.monotonic):
        self._num_desktops = num_desktops
        self._clock = clock
        self._open: dict[str, float] = {}
        self._clear()

    def call_done(self, call: str, seconds: float) -> None:
        self._seconds[call].append(seconds)

    def fault(self, error_name: str) -> None:
        """Count a fault by its error class's name; an unknown one as `lost`."""
        self._counts[f"faults/{_KIND_OF.get(error_name, 'lost')}"] += 1

    def session_dropped(self) -> None:
        self._counts["dropped_sessions"] += 1

    def lease_reclaimed(self) -> None:
        self._counts["leases_reclaimed"] += 1

    def lease_began(self, lease_id: str, waited_s: float) -> None:
        self._open[lease_id] = self._clock()
        self._waits.append(waited_s)

    def lease_ended(self, lease_id: str, report: LeaseReport) -> None:
        self._busy_s += self._clock() - max(self._open.pop(lease_id), self._since)
        for call, seconds in report.seconds.items():
            self._seconds[call].extend(seconds)
        if report.fault is not None:
            self.fault(report.fault)

    def collect(self) -> dict[str, float]:
        """The counters since the last call, named `environment/...`; times in seconds, shares in [0, 1]."""
        now = self._clock()
        busy_s = self._busy_s + sum(now - max(began, self._since) for began in self._open.values())
        elapsed_s = max(now - self._since, 1e-9)
        values: dict[str, float] = {
            "leases": len(self._waits),
            "lease_wait_s/mean": _mean(self._waits),
            "lease_wait_s/max": max(self._waits, default=0.0),
            "busy_share": min(1.0, busy_s / (elapsed_s * self._num_desktops)),
            "dropped_sessions": self._counts["dropped_sessions"],
            "leases_reclaimed": self._counts["leases_reclaimed"],
        }
        for kind in FAULT_KINDS:
            values[f"faults/{kind}"] = self._counts[f"faults/{kind}"]
        for call in CALLS:
            values[f"{call}s" if call != "evaluate" else "evaluations"] = len(self._seconds[call])
            values[f"{call}_s/mean"] = _mean(self._seconds[call])
        self._clear()
        return {f"environment/{name}": float(value) for name, value in values.items()}

    def _clear(self) -> None:
        self._since = self._clock()
        self._busy_s = 0.0
        self._waits: list[float] = []
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
