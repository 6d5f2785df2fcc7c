"""Reads a run's curves from the growing metrics files of veRL's `file` logger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from arpo_verl.errors import ConfigError
from arpo_verl.records.json_files import Count, GrowingFile, as_number
from arpo_verl.records.layout import METRICS_FILE
from arpo_verl.records.table import data_frame

if TYPE_CHECKING:
    import pandas

_PART = "part"
"""The kind of an earlier start that a later one resumed."""


class MetricsLine(msgspec.Struct):
    """What veRL logged at once. Its values may be of any type."""

    step: Count
    data: dict[str, Any]


@dataclass(frozen=True)
class Metrics:
    """Aligned series, with None if a step has no such value, or one that is not finite."""

    steps: tuple[int, ...]
    series: Mapping[str, tuple[float | None, ...]]

    def column(self, name: str) -> tuple[float | None, ...]:
        """Return one series; all None if the run never logged it."""
        return self.series.get(name, (None,) * len(self.steps))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with a row for each step and a column for each metric.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return data_frame(self.series, self.steps).rename_axis("step")


class MetricsFiles:
    """All metrics files of a run; the last counts if a step was repeated. Not thread-safe."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self._files: dict[Path, GrowingFile[MetricsLine]] = {}
        self._by_file: dict[Path, dict[int, dict[str, float]]] = defaultdict(dict)

    def refresh(self) -> bool:
        """Read what was appended; return whether there was anything."""
        changed = False
        # In the order of the starts, so the current file comes last.
        for path in (*_earlier(self.run_dir, _PART), self.run_dir / METRICS_FILE):
            by_step = self._by_file[path]
            rows = self._files.setdefault(path, GrowingFile(path, MetricsLine)).read_new(forget=by_step.clear)
            for step, data in rows_of(rows):
                by_step.setdefault(step, {}).update(data)
            changed = changed or bool(rows)
        return changed

    def by_step(self) -> dict[int, dict[str, float]]:
        """Return the numbers of each step at the last `refresh`, in order."""
        merged: dict[int, dict[str, float]] = defaultdict(dict)
        for path in sorted(self._by_file, key=lambda path: (path.name == METRICS_FILE, path.name)):
            for step, data in self._by_file[path].items():
                merged[step].update(data)
        return dict(sorted(merged.items()))

    def metrics(self) -> Metrics:
        """Return the series at the last `refresh`."""
        merged = self.by_step()
        steps = tuple(merged)
        names = sorted({name for data in merged.values() for name in data})
        return Metrics(steps, {name: tuple(merged[step].get(name) for step in steps) for name in names})


def require_metrics(path: Path) -> None:
    """Check that there is a metrics file at this path.

    Raises:
        ConfigError: there is none.
    """
    if not path.is_file():
        raise ConfigError(
            f"there is no {path}: the run has not begun, or its trainer.logger has no `file`; name a run's folder"
        )


def keep_earlier_metrics(run_dir: Path, resumes: bool) -> None:
    """Move the metrics of an earlier start aside, since veRL's `file` logger overwrites its file.

    Args:
        resumes: whether the run resumes from a checkpoint; then the earlier metrics stay a part of it.
    """
    current = run_dir / METRICS_FILE
    if current.is_file():
        kind = _PART if resumes else "old"
        current.rename(run_dir / f"metrics.{kind}{len(_earlier(run_dir, kind)):03d}.jsonl")


def _earlier(run_dir: Path, kind: str) -> list[Path]:
    """Return the metrics files of earlier starts, in their order."""
    return sorted(run_dir.glob(f"metrics.{kind}*.jsonl"))


def rows_of(lines: Iterable[MetricsLine]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield `(step, metrics)` for each line, with its numbers alone."""
    for line in lines:
        yield line.step, {name: number for name, value in line.data.items() if (number := as_number(value)) is not None}
