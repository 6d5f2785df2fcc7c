"""Makes a line for each training step, from the growing metrics file of veRL's `file` logger."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from statistics import fmean

from arpo_verl.records.json_files import GrowingFile
from arpo_verl.records.layout import METRICS_FILE
from arpo_verl.records.metrics_files import MetricsLine, rows_of
from arpo_verl.records.run_summary import WINDOW, validation_success

_FAULTS = "environment/faults/"


class StepLines:
    """Makes the lines of one start of a run.

    Args:
        run_dir: the run's folder, after the metrics of earlier starts were moved aside.
        total: number of the run's steps; None if unknown.
    """

    def __init__(self, run_dir: Path, total: int | None) -> None:
        self._file = GrowingFile(run_dir / METRICS_FILE, MetricsLine)
        self._total = total
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self.step: int | None = None
        """The last step that has a line; None before the first one."""

    def read_new(self) -> list[str]:
        """Return the lines of what veRL logged since the last call."""
        return [self._line(step, data) for step, data in rows_of(self._file.read_new(forget=lambda: None))]

    def _line(self, step: int, data: dict[str, float]) -> str:
        validation = validation_success(data)
        if "training/global_step" not in data:
            when = f"after step {step}" if step else "before the first step"
            return f"validation {when}" + ("" if validation is None else f": success {100 * validation:.1f}%")
        self.step = step
        of_total = "" if self._total is None else f" of {self._total}"
        parts = [f"step {step:>{len(str(self._total or 0))}}{of_total}"]
        if "rollout/success_mean" in data:
            parts.append(f"success {100 * data['rollout/success_mean']:5.1f}%")
        if "replay/injected" in data:
            added = data.get("replay/added", 0)
            parts.append(f"replays {data['replay/injected']:.0f}" + (f" (beside groups: {added:.0f})" if added else ""))
        faults = [value for name, value in data.items() if name.startswith(_FAULTS)]
        if faults:
            dropped = data.get("environment/dropped_sessions", 0)
            parts.append(f"faults {sum(faults):.0f}" + (f" (episodes dropped: {dropped:.0f})" if dropped else ""))
        if "timing_s/step" in data:
            self._seconds.append(data["timing_s/step"])
            parts.append(f"{data['timing_s/step']:.0f} s")
        if validation is not None:
            parts.append(f"validation {100 * validation:.1f}%")
        if self._total is not None and step < self._total and self._seconds:
            parts.append(f"{_duration((self._total - step) * fmean(self._seconds))} left")
        return "  ".join(parts)


def _duration(seconds: float) -> str:
    """Format seconds in the two largest units that matter."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
