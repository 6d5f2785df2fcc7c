"""The table of docs/osworld-tasks.md: for each of OSWorld's tasks whether this machine runs it, and what came of a run.

    python benchmarks/osworld_tasks.py --index test_all.json --json RUNS.json
    python benchmarks/osworld_table.py RUNS.json [--tasks-dir DIR] > docs/osworld-tasks.md

Runs nothing itself. A task that may run and that is in none of the files is told as not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.osworld import harness  # noqa: E402
from support.osworld.solutions.chrome import LEFT_OUT  # noqa: E402

from arpo_verl.environments.config import EnvironmentConfig  # noqa: E402
from arpo_verl.tasks.loader import TaskProblem, scan_tasks  # noqa: E402
from arpo_verl.tasks.schema import INFEASIBLE  # noqa: E402
from arpo_verl.tasks.validation import explain_task  # noqa: E402
from arpo_verl.types import Task  # noqa: E402

HEADER = """# OSWorld's own tasks on the embedded desktop

{total} of OSWorld's 369 task files, used as they are, on a machine with the Debian packages of
`python -m arpo_verl.desktop.packages list osworld` and without access to the internet. Made by

```bash
python benchmarks/osworld_tasks.py --index test_all.json --json RUNS.json
python benchmarks/osworld_table.py RUNS.json > docs/osworld-tasks.md
```

Nothing in the library knows a task: whether one can run is read from its own JSON (`explain_task` in
`arpo_verl/tasks/validation.py`), before training starts; `arpo-verl doctor --task-dir DIR` says it for other tasks and
for your machine. Most of what is refused here is refused for downloads: OSWorld's client makes them on the host, so
with access to huggingface.co, or with the files under `environment.cache_dir`, these tasks are no longer refused. That
was tried with 5 of them, with files of our own in the place of the downloads (`tests/osworld/`); with
their true files none of them has been run here.
"""
KINDS = RUN, NOT_RUN, OUT, PROGRAM, DOWNLOAD, INTERNET, UNKNOWN = (
    "run here",
    "not refused, not run",
    "left out: runs here and tells nothing",
    "refused: a program or package is missing",
    "refused: downloads that this machine does not reach",
    "refused: takes the desktop into the internet",
    "refused: malformed, or unknown to desktop-env 1.0.2",
)


def row(found: Task | TaskProblem, runs: dict[str, dict[str, Any]]) -> tuple[str, str, str, str]:
    """Domain, id, category and words about one task."""
    if isinstance(found, TaskProblem):
        path = Path(found.where.split()[-1])
        return path.parent.name, path.stem, UNKNOWN, found.what
    path = next(args.tasks_dir.glob(f"examples/*/{found.task_id}.json"))
    reasons = explain_task(found, EnvironmentConfig(screen_size=harness.SCREEN))
    if reasons:
        return path.parent.name, found.task_id, category(reasons), "; ".join(map(shorter, reasons))
    if found.task_id in LEFT_OUT:
        return path.parent.name, found.task_id, OUT, LEFT_OUT[found.task_id]
    outcome = runs.get(found.task_id)
    infeasible = found.spec["evaluator"]["func"] == INFEASIBLE
    words = result(outcome) if outcome else "infeasible" if infeasible else ""
    return path.parent.name, found.task_id, RUN if outcome else NOT_RUN, words


def category(reasons: list[str]) -> str:
    """The hardest of the obstacles: what no file and no package on this machine would remove comes first."""
    downloads = [reason for reason in reasons if reason.startswith("it downloads")]
    missing = [r for r in reasons if any(sign in r for sign in ("not installed", "apt-get install", "was booted"))]
    if len(downloads) + len(missing) < len(reasons):
        return INTERNET
    return PROGRAM if missing else DOWNLOAD


def shorter(reason: str) -> str:
    """Without what is the same for all, and the names of this machine."""
    return reason.partition(", which this machine does not reach")[0]


def result(outcome: dict[str, Any]) -> str:
    """What a run scored."""
    if outcome["error"]:
        return f"error: {outcome['error']}"
    names = {"fail": "FAIL", "nothing": "doing nothing", "solution": "scripted solution"}
    scores = [f"{words} scores {outcome[name]:g}" for name, words in names.items() if outcome[name] is not None]
    unsolved = outcome["nothing"] is not None and outcome["solution"] is None
    return ", ".join(scores) + (", no solution scripted" if unsolved else "")


def lines(rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    """The page."""
    yield HEADER.format(total=len(rows))
    counts = Counter(kind for _, _, kind, _ in rows)
    yield from ("| tasks | |", "|---:|---|")
    yield from (f"| {counts[kind]} | {kind} |" for kind in KINDS)
    for kind in KINDS:
        yield from ("", f"## {kind[0].upper()}{kind[1:]}", "", "| domain | task | |", "|---|---|---|")
        chosen = sorted((domain, task_id, words) for domain, task_id, other, words in rows if other == kind)
        yield from (
            f"| {domain} | {task_id} | {words.replace('|', chr(92) + '|')} |" for domain, task_id, words in chosen
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="what osworld_tasks.py wrote by --json")
    parser.add_argument("--tasks-dir", type=Path, default=harness.find_tasks_dir(), help="OSWorld's task files")
    args = parser.parse_args()
    outcomes = [outcome for path in args.runs for outcome in json.loads(path.read_text())["tasks"]]
    ran = {outcome["task_id"]: outcome for outcome in outcomes if not outcome["refused"]}
    print("\n".join(lines([row(found, ran) for found in scan_tasks(args.tasks_dir)])))
