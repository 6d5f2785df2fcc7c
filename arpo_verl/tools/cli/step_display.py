"""This shows a run's lines: above a progress bar on a terminal, and plain anywhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class StepDisplay:
    """This prints plain lines at once."""

    def tell(self, line: str) -> None:
        """Print a line."""
        print(line, flush=True)

    def begin(self, step: int) -> None:
        """Show the training step that runs now."""


class _LiveDisplay(StepDisplay):
    def __init__(self, progress: Progress, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=total)

    def tell(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, step: int) -> None:
        total = self._progress.tasks[0].total
        words = f"step {step}" if total is None or step <= total else "ending"
        self._progress.update(self._task, completed=step - 1, description=words)


@contextlib.contextmanager
def open_display(total: int | None) -> Iterator[StepDisplay]:
    """Open the display for this standard output.

    Args:
        total: number of the run's steps; None if unknown.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:  # veRL's dependencies include it, but we do not require it
        yield StepDisplay()
        return
    console = Console()
    if not console.is_terminal:
        yield StepDisplay()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=2, transient=True) as progress:
        yield _LiveDisplay(progress, total)
