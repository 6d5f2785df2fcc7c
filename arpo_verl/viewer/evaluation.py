"""This makes an evaluation's document for the page: its tables, and each task's runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arpo_verl.records.json_files import as_number, read_json_object
from arpo_verl.records.layout import RESULTS_FILE
from arpo_verl.records.run import Run

_COUNTS = ("tasks", "unscored", "runs", "faults", "format_errors")


def has_evaluation(run: Run) -> bool:
    """Return whether the run is an evaluation with tables."""
    return (run.run_dir / RESULTS_FILE).is_file()


def evaluation_document(run: Run) -> dict[str, Any]:
    """Make `api/evaluation` from `results.json`, with the types that the page expects, whatever the file has. Shares
    are in [0, 1]; the domain null means all domains."""
    try:
        content = read_json_object(run.run_dir / RESULTS_FILE)
    except (OSError, ValueError):  # no evaluation's folder, or an incomplete one
        content = {}
    tasks = [
        {
            "task_id": str(task.get("task_id")),
            "domain": str(task.get("domain")),
            "runs": list(map(_run, _in(task, "runs"))),
        }
        for task in _in(content, "tasks")
    ]
    return {"table": [_row(row) for row in _in(content, "table")], "tasks": tasks}


def _in(content: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    values = content.get(name)
    return (value for value in (values if isinstance(values, list) else ()) if isinstance(value, dict))


def _row(row: dict[str, Any]) -> dict[str, Any]:
    ends = row.get("interval")
    interval = [as_number(end) for end in ends] if isinstance(ends, list) else []
    return {
        "budget": as_number(row.get("budget")),
        "domain": None if row.get("domain") is None else str(row["domain"]),
        **{name: as_number(row.get(name)) for name in (*_COUNTS, "success", "turns")},
        "interval": interval if len(interval) == 2 and None not in interval else None,
        "pass_at_k": [
            {name: as_number(one.get(name)) for name in ("k", "value", "tasks")} for one in _in(row, "pass_at_k")
        ],
    }


def _run(run: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: as_number(run.get(name)) for name in ("run", "budget", "success", "turns")}
    return {
        **numbers,
        "episode_id": str(run.get("episode_id")),
        "stop_reason": str(run.get("stop_reason")),
    }
