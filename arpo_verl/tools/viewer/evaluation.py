"""Makes an evaluation's document for the page: its tables, and each task's runs."""

from __future__ import annotations

from typing import Any

import msgspec

from arpo_verl.records.json_files import Integer, Number, read_json
from arpo_verl.records.layout import RESULTS_FILE
from arpo_verl.records.run import Run


class _PassAtK(msgspec.Struct):
    k: Integer | None = None
    value: Number | None = None
    tasks: Integer | None = None


class _Row(msgspec.Struct):
    budget: Integer | None = None
    domain: str | None = None
    tasks: Integer | None = None
    unscored: Integer | None = None
    runs: Integer | None = None
    faults: Integer | None = None
    format_errors: Integer | None = None
    success: Number | None = None
    turns: Number | None = None
    interval: tuple[Number, Number] | None = None
    pass_at_k: list[_PassAtK] = []


class _Run(msgspec.Struct):
    run: Integer | None = None
    budget: Integer | None = None
    success: Number | None = None
    turns: Integer | None = None
    episode_id: str = ""
    stop_reason: str = ""


class _Task(msgspec.Struct):
    task_id: str
    domain: str = ""
    runs: list[_Run] = []


class _Results(msgspec.Struct):
    table: list[_Row] = []
    tasks: list[_Task] = []


def has_evaluation(run: Run) -> bool:
    """Return whether the run is an evaluation with tables."""
    return (run.run_dir / RESULTS_FILE).is_file()


def evaluation_document(run: Run) -> dict[str, Any]:
    """Make `api/evaluation` from `results.json`: empty if it is missing or incomplete. Shares are in [0, 1]; the domain
    null means all domains."""
    try:
        results = read_json(run.run_dir / RESULTS_FILE, _Results)
    except (OSError, ValueError):
        results = _Results()
    document: dict[str, Any] = msgspec.to_builtins(results)
    return document
