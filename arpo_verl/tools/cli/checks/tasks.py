"""Which tasks this machine can run, and what the others lack."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import TaskError
from arpo_verl.tasks.loader import TaskProblem, scan_tasks
from arpo_verl.tasks.validation import explain_task

# Names in a reason: hosts and files, texts in quotes, and in brackets unless they say how to get a program.
_NAMES = re.compile(r"`[^`]*`|'[^']*'|\((?!apt-get|not in)[^)]*\)|[^\s(]*[./][^\s,]+")


@dataclass(frozen=True)
class TaskReport:
    """A task, by its id, or by its file if the id is unreadable; without reasons it can run."""

    task: str
    reasons: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.reasons


def report_tasks(path: str | Path, environment: EnvironmentConfig) -> list[TaskReport]:
    """Check every task below `path`, in the order of the files.

    Raises:
        TaskError: there is nothing at `path`, or no task.
    """
    reports = []
    for found in scan_tasks(path):
        if isinstance(found, TaskProblem):
            reports.append(TaskReport(found.where, (found.what,)))
        else:
            reports.append(TaskReport(found.task_id, tuple(explain_task(found, environment))))
    if not reports:
        raise TaskError(f"{path} has no task; name a task file, folder or index")
    return reports


def tasks_by_reason(reports: Sequence[TaskReport]) -> dict[str, list[str]]:
    """Return the tasks of each kind of reason, the most frequent first; in a kind, `…` replaces names."""
    tasks: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for report in reports:
        for reason in report.reasons:
            tasks[_kind(reason)][report.task] = None
    return {kind: list(ids) for kind, ids in sorted(tasks.items(), key=lambda item: -len(item[1]))}


def _kind(reason: str) -> str:
    return _NAMES.sub("…", reason.partition(";")[0])


def summary(reports: Sequence[TaskReport]) -> str:
    """Say how many tasks can run."""
    return f"{sum(report.ok for report in reports)} of {len(reports)} tasks can run on this machine"


def as_text(reports: Sequence[TaskReport]) -> str:
    """Format for a terminal: each task, then the reasons."""
    lines = []
    for report in reports:
        lines.append(f"[{'ok  ' if report.ok else 'FAIL'}] {report.task}")
        lines += [f"       -> {reason}" for reason in report.reasons]
    lines += ["", summary(reports)]
    lines += [f"{len(tasks):5}  {reason}" for reason, tasks in tasks_by_reason(reports).items()]
    return "\n".join(lines)


def as_markdown(reports: Sequence[TaskReport]) -> str:
    """Format as two tables: the reasons, and the tasks."""
    lines = [f"{summary(reports)}.", "", "| tasks | reason |", "|---:|---|"]
    lines += [f"| {len(tasks)} | {_cell(reason)} |" for reason, tasks in tasks_by_reason(reports).items()]
    lines += ["", "| task | runs | what is missing |", "|---|---|---|"]
    for report in reports:
        reasons = "<br>".join(_cell(reason) for reason in report.reasons)
        lines.append(f"| {_cell(report.task)} | {'yes' if report.ok else 'no'} | {reasons} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
