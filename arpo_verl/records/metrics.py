"""The curves of a run, from the metrics files that veRL's `file` logger writes, read as they grow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arpo_verl.records.json_files import GrowingFile, as_number
from arpo_verl.records.run_summary import METRICS_FILE
from arpo_verl.records.table import data_frame

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Metrics:
    """Aligned series; None where a step has no such value, or one that is not finite."""

    steps: tuple[int, ...]
    series: Mapping[str, tuple[float | None, ...]]

    def column(self, name: str) -> tuple[float | None, ...]:
        """One series; all None where the run never logged it."""
        return self.series.get(name, (None,) * len(self.steps))

    def to_pandas(self) -> pandas.DataFrame:
        """A row a step, a column a metric.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        columns = {"step": self.steps, **self.series}
        return data_frame((dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)), "step")


class MetricsFiles:
    """All metrics files of one run: of a step done again after its checkpoint, the later counts. Not thread-safe."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self._files: dict[Path, GrowingFile] = {}
        self._by_file: dict[Path, dict[int, dict[str, float]]] = defaultdict(dict)

    def refresh(self) -> bool:
        """Read what was appended; True where anything was."""
        changed = False
        # In the order of the starts: the current file was begun last.
        paths = [*sorted(self.run_dir.glob("metrics.part*.jsonl")), self.run_dir / METRICS_FILE]
        for path in paths:
            by_step = self._by_file[path]
            rows = self._files.setdefault(path, GrowingFile(path)).read_new(forget=by_step.clear)
            for row in rows:
                _merge(by_step, row)
            changed = changed or bool(rows)
        return changed

    def metrics(self) -> Metrics:
        """The series as of the last `refresh`."""
        merged: dict[int, dict[str, float]] = defaultdict(dict)
        for path in sorted(self._by_file, key=lambda path: (path.name == METRICS_FILE, path.name)):
            for step, data in self._by_file[path].items():
                merged[step].update(data)
        steps = tuple(sorted(merged))
        names = sorted({name for data in merged.values() for name in data})
        return Metrics(steps, {name: tuple(merged[step].get(name) for step in steps) for name in names})


def _merge(by_step: dict[int, dict[str, float]], row: Mapping[str, object]) -> None:
    step, data = row.get("step"), row.get("data")
    if not isinstance(step, int) or not isinstance(data, dict):
        return
    numbers = {name: number for name, value in data.items() if (number := as_number(value)) is not None}
    by_step.setdefault(step, {}).update(numbers)
