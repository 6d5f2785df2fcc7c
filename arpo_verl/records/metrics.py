"""The curves of a run, from the metrics files that veRL's `file` logger writes, read as they grow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arpo_verl.errors import ConfigError
from arpo_verl.records.json_files import GrowingFile, as_number, read_objects
from arpo_verl.records.layout import METRICS_FILE
from arpo_verl.records.table import data_frame

if TYPE_CHECKING:
    import pandas

_PART = "part"
"""An earlier start that a later one went on from."""

_STEPS_END = 1 << 53
"""Step numbers are below it: a chart's floats and a browser hold each of these exactly."""


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
        return data_frame(self.series, self.steps).rename_axis("step")


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
        for path in (*_earlier(self.run_dir, _PART), self.run_dir / METRICS_FILE):
            by_step = self._by_file[path]
            rows = self._files.setdefault(path, GrowingFile(path)).read_new(forget=by_step.clear)
            for step, data in rows_of(rows):
                by_step.setdefault(step, {}).update(data)
            changed = changed or bool(rows)
        return changed

    def by_step(self) -> dict[int, dict[str, float]]:
        """The numbers of each step as of the last `refresh`, in order."""
        merged: dict[int, dict[str, float]] = defaultdict(dict)
        for path in sorted(self._by_file, key=lambda path: (path.name == METRICS_FILE, path.name)):
            for step, data in self._by_file[path].items():
                merged[step].update(data)
        return dict(sorted(merged.items()))

    def metrics(self) -> Metrics:
        """The series as of the last `refresh`."""
        merged = self.by_step()
        steps = tuple(merged)
        names = sorted({name for data in merged.values() for name in data})
        return Metrics(steps, {name: tuple(merged[step].get(name) for step in steps) for name in names})


def read_metrics(path: Path) -> list[tuple[int, dict[str, float]]]:
    """The `(step, metrics)` rows of one metrics file, in order.

    Raises:
        ConfigError: there is no such file.
    """
    require_metrics(path)
    return list(rows_of(read_objects(path)))


def require_metrics(path: Path) -> None:
    """Refuse a path without a metrics file.

    Raises:
        ConfigError: there is none.
    """
    if not path.is_file():
        raise ConfigError(
            f"there is no {path}: the run has not begun, or its trainer.logger has no `file`; name a run's folder"
        )


def keep_earlier_metrics(run_dir: Path, resumes: bool) -> None:
    """Move the metrics of an earlier start aside: veRL's `file` logger begins its file anew.

    Args:
        resumes: whether the run goes on from a checkpoint; the earlier metrics then stay a part of it.
    """
    current = run_dir / METRICS_FILE
    if current.is_file():
        kind = _PART if resumes else "old"
        current.rename(run_dir / f"metrics.{kind}{len(_earlier(run_dir, kind)):03d}.jsonl")


def _earlier(run_dir: Path, kind: str) -> list[Path]:
    """The metrics of earlier starts, in their order."""
    return sorted(run_dir.glob(f"metrics.{kind}*.jsonl"))


def rows_of(lines: Iterable[Mapping[str, object]]) -> Iterator[tuple[int, dict[str, float]]]:
    """The `(step, metrics)` of each line of a metrics file that holds them."""
    for line in lines:
        step, data = line.get("step"), line.get("data")
        if type(step) is int and 0 <= step < _STEPS_END and isinstance(data, dict):
            yield step, {name: number for name, value in data.items() if (number := as_number(value)) is not None}
