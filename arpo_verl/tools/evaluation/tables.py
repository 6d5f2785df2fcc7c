"""Makes an evaluation's tables: by domain and overall, within each turn budget. Pure."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo_verl.tools.evaluation.results import Evaluated, Result
from arpo_verl.tools.evaluation.statistics import Summary, summarize

OVERALL = "all"
_NONE = "-"


@dataclass(frozen=True)
class TableRow:
    """One line of the table."""

    budget: int
    domain: str | None
    """The domain; None for all tasks, "" for tasks without one."""
    summary: Summary


def table_of(evaluated: Evaluated) -> tuple[TableRow, ...]:
    """Return the rows of each turn budget: the domains, in the order of the tasks, and then all tasks."""
    budgets = sorted({int(budget) for budget in evaluated.settings["max_steps"]})
    rows = []
    for budget in budgets:
        results = [result for result in evaluated.results if result.budget == budget]
        # A trial's fault counts for all smaller budgets too, since they need its episode.
        scored = {(result.task_id, result.run) for result in results}
        faults = [one for one in evaluated.faults if one.max_steps >= budget and (one.task_id, one.run) not in scored]
        faults = list({(one.task_id, one.run): one for one in faults}.values())
        for domain in (*dict.fromkeys(evaluated.domains.values()), None):
            task_ids = [task_id for task_id, its in evaluated.domains.items() if domain in (None, its)]
            rows.append(TableRow(budget, domain, summarize(task_ids, results, faults)))
    return tuple(rows)


def to_markdown(evaluated: Evaluated) -> str:
    """Format the tables in Markdown, in aligned columns, with notes below on what they leave out."""
    rows = table_of(evaluated)
    parts = []
    for budget in sorted({row.budget for row in rows}):
        rows_of_budget = [row for row in rows if row.budget == budget]
        notes = [*_notes(rows_of_budget[-1].summary), *_unfair(evaluated, budget)]
        table = _markdown_table(rows_of_budget)
        parts.append("\n".join([f"At most {budget} turns:\n", table, *(f"{note}\n" for note in notes)]))
    return "\n".join(parts)


def _markdown_table(rows: Sequence[TableRow]) -> str:
    head, *body = _lines(rows)
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in (head, rule, *body))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in padded)


def _lines(rows: Sequence[TableRow]) -> list[list[str]]:
    ks = sorted({one.k for row in rows for one in row.summary.pass_at_k})
    head = ["domain", "tasks", "runs", "success", "95% interval", *(f"pass@{k}" for k in ks)]
    head += ["turns", "format errors", "faults"]
    return [head, *(_cells(row, ks) for row in rows)]


def _cells(row: TableRow, ks: Sequence[int]) -> list[str]:
    summary = row.summary
    low_high = _NONE if summary.interval is None else " to ".join(map(percent, summary.interval))
    passed = {one.k: one for one in summary.pass_at_k}
    name = OVERALL if row.domain is None else _markdown_cell(row.domain) or "other"
    success = percent(summary.success)
    return [
        name if row.domain is not None else f"**{name}**",
        str(summary.tasks),
        str(summary.runs),
        success if row.domain is not None else f"**{success}**",
        low_high,
        *(percent(passed[k].value) if k in passed else _NONE for k in ks),
        _NONE if summary.turns is None else f"{summary.turns:.1f}",
        str(summary.format_errors),
        str(summary.faults),
    ]


def _markdown_cell(text: str) -> str:
    """Put a text on one line, without characters that would end its cell or be HTML."""
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())


def percent(share: float | None) -> str:
    """Format a share in [0, 1], to a tenth of a percent."""
    return _NONE if share is None else f"{100 * share:.1f}%"


def _notes(summary: Summary) -> list[str]:
    notes = []
    if summary.unscored:
        notes.append(f"{summary.unscored} tasks have no result, so no figure includes them.")
    if summary.faults:
        notes.append(f"{summary.faults} runs were lost to infrastructure failures, and are not scored.")
    if summary.fewest_runs < summary.most_runs:
        runs = f"{summary.fewest_runs} to {summary.most_runs} runs"
        notes.append(f"Tasks have {runs}: we average a task's own runs first, so that each task counts the same.")
    notes += [
        f"pass@{one.k} is over the {one.tasks} tasks with {one.k} runs."
        for one in summary.pass_at_k
        if one.tasks < summary.tasks
    ]
    return notes


def _unfair(evaluated: Evaluated, budget: int) -> list[str]:
    """Return a note for a budget that longer episodes do not cover and whose own episodes are missing."""
    scored = {(result.task_id, result.run) for result in evaluated.results if result.budget == budget}
    longer = {(result.task_id, result.run) for result in evaluated.results if result.budget > budget} - scored
    if not longer:
        return []
    return [f"{len(longer)} longer runs are not scored here yet; until then only runs that ended early count."]


def to_csv(evaluated: Evaluated) -> str:
    """Format one table as CSV, a line for each budget and domain; shares in [0, 1], empty fields without a figure."""
    rows = table_of(evaluated)
    ks = sorted({one.k for row in rows for one in row.summary.pass_at_k})
    plain = [field.name for field in dataclasses.fields(Summary) if field.name not in ("interval", "pass_at_k")]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["budget", "domain", *plain, "success_low", "success_high", *(f"pass_at_{k}" for k in ks)])
    for row in rows:
        low_high = row.summary.interval or (None, None)
        passed = {one.k: one.value for one in row.summary.pass_at_k}
        values = [getattr(row.summary, name) for name in plain]
        name = OVERALL if row.domain is None else row.domain
        writer.writerow([row.budget, _plain_cell(name), *values, *low_high, *(passed.get(k) for k in ks)])
    return text.getvalue()


def _plain_cell(text: str) -> str:
    """Change a text so that no spreadsheet takes it for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def to_json(evaluated: Evaluated) -> dict[str, Any]:
    """Return all of it: the settings, the tables, and each task's runs. The `domain` null means all domains."""
    return {
        "settings": dict(evaluated.settings),
        "table": [
            {"budget": r.budget, "domain": r.domain, **dataclasses.asdict(r.summary)} for r in table_of(evaluated)
        ],
        "tasks": [_task(task_id, domain, evaluated) for task_id, domain in evaluated.domains.items()],
        "faults": [dataclasses.asdict(fault) for fault in evaluated.faults],
    }


def _task(task_id: str, domain: str, evaluated: Evaluated) -> dict[str, Any]:
    runs = [_run(result) for result in evaluated.results if result.task_id == task_id]
    return {"task_id": task_id, "domain": domain, "runs": runs}


def _run(result: Result) -> Mapping[str, Any]:
    names = ("run", "budget", "success", "turns", "format_error", "episode_id")
    return {**{name: getattr(result, name) for name in names}, "stop_reason": result.stop_reason.value}
