"""OSWorld's own tasks on the embedded desktop: which run here, and which a scripted solution solves through the GUI.

    python benchmarks/osworld_tasks.py [--smoke] [--json PATH] [--tasks-dir DIR] [--index NAME] [--domains os,gimp]

Each task file is used as it is. A feasible task is run twice: by an agent that does nothing, which must score 0, and by
its scripted solution where there is one (`tests/support/osworld/solutions`), which must score 1. An infeasible one must
score 1 for FAIL. A task that cannot run on this machine is refused with the reason, before anything starts.
The exit status is 1 when a task that ran scored otherwise.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from figures import Arguments, write  # noqa: E402
from support.osworld import harness  # noqa: E402
from support.osworld.solutions import all_solutions  # noqa: E402
from support.osworld.solutions.chrome import LEFT_OUT  # noqa: E402

from arpo_verl.environments.config import EnvironmentConfig  # noqa: E402
from arpo_verl.environments.osworld.environment import OSWorldEnvironment  # noqa: E402
from arpo_verl.errors import DesktopError, TaskError  # noqa: E402
from arpo_verl.tasks.loader import load_tasks  # noqa: E402
from arpo_verl.tasks.schema import INFEASIBLE  # noqa: E402
from arpo_verl.tasks.validation import explain_task  # noqa: E402
from arpo_verl.types import Task  # noqa: E402


@dataclass(frozen=True)
class Outcome:
    """What came of one task; scores are None where that was not run."""

    domain: str
    task_id: str
    refused: str = ""
    error: str = ""
    fail: float | None = None
    nothing: float | None = None
    solution: float | None = None
    seconds: float = 0.0

    @property
    def ran(self) -> bool:
        """Whether set-up and evaluator went through."""
        return not self.refused and not self.error

    @property
    def as_expected(self) -> bool:
        """1 for FAIL where infeasible, 0 for doing nothing, 1 for the solution."""
        return (
            not self.error and self.fail in (None, 1.0) and self.nothing in (None, 0.0) and self.solution in (None, 1)
        )


def read_index(tasks_dir: Path, name: str, domains: list[str]) -> Iterator[tuple[str, Path]]:
    """Domain and file of each task that an index of OSWorld's names."""
    index = json.loads((tasks_dir / name).read_text())
    for domain in domains or index:
        for task_id in index.get(domain, []):
            yield domain, tasks_dir / "examples" / domain / f"{task_id}.json"


def refusal(path: Path) -> tuple[Task | None, str]:
    """The task, or why it is not run here."""
    if path.stem in LEFT_OUT:
        return None, LEFT_OUT[path.stem]
    try:
        (task,) = load_tasks(path)
    except TaskError as error:
        return None, str(error).splitlines()[-1].strip().removeprefix(f"{path}: ")
    reasons = explain_task(task, EnvironmentConfig(screen_size=harness.SCREEN))
    return (None, "; ".join(reasons)) if reasons else (task, "")


def run(environment: OSWorldEnvironment, domain: str, path: Path, with_solution: bool) -> Outcome:
    """Run one task as far as it goes."""
    task, reason = refusal(path)
    if task is None:
        return Outcome(domain, path.stem, refused=reason)
    started, scores = time.monotonic(), {}
    try:
        if task.spec["evaluator"]["func"] == INFEASIBLE:
            scores["fail"] = harness.run_fail(environment, task)
        else:
            scores["nothing"] = harness.run_nothing(environment, task)
            solution = all_solutions().get(task.task_id) if with_solution else None
            if solution is not None:
                scores["solution"] = harness.run_solution(environment, task, solution)
    except (DesktopError, AssertionError) as error:
        return Outcome(domain, path.stem, error=str(error), **scores, seconds=time.monotonic() - started)
    return Outcome(domain, path.stem, **scores, seconds=time.monotonic() - started)


def show(outcome: Outcome) -> None:
    """One line of the table."""
    scores = ["-" if s is None else f"{s:g}" for s in (outcome.fail, outcome.nothing, outcome.solution)]
    remark = f"refused: {outcome.refused}" if outcome.refused else outcome.error
    if not outcome.as_expected:
        remark = f"NOT AS EXPECTED {remark}"
    columns = "  ".join(f"{score:>8}" for score in scores)
    print(f"{outcome.domain:20} {outcome.task_id[:8]} {columns} {outcome.seconds:7.1f}  {remark}", flush=True)


def counts(outcomes: list[Outcome]) -> dict[str, int]:
    """The three numbers, and how many of those that ran are infeasible."""
    return {
        "ran": sum(outcome.ran for outcome in outcomes),
        "of_these_infeasible": sum(outcome.fail is not None for outcome in outcomes),
        "solved": sum(outcome.solution == 1.0 for outcome in outcomes),
        "refused": sum(bool(outcome.refused) for outcome in outcomes),
        "not_as_expected": sum(not outcome.as_expected for outcome in outcomes),
    }


def main() -> int:
    parser = Arguments(__doc__, "the first two tasks of each domain, without solutions")
    parser.add_argument("--tasks-dir", type=Path, default=harness.find_tasks_dir(), help="OSWorld's task files")
    parser.add_argument(
        "--index", default="no_download.json", help="a file there: domain -> ids (default: %(default)s)"
    )
    parser.add_argument("--domains", default="", help="only these, with commas between them")
    args = parser.parse()
    if args.tasks_dir is None:
        parser.error(f"name OSWorld's task files by --tasks-dir or {harness.TASKS_VARIABLE}")
    tasks = list(read_index(args.tasks_dir, args.index, [name for name in args.domains.split(",") if name]))
    if args.smoke:
        tasks = [task for n, task in enumerate(tasks) if [domain for domain, _ in tasks[:n]].count(task[0]) < 2]
    print(f"{'domain':20} {'task':8} {'FAIL':>8}  {'nothing':>8}  {'solution':>8} {'seconds':>7}")
    environment, outcomes = harness.make_environment(), []
    try:
        for domain, path in tasks:
            outcomes.append(run(environment, domain, path, not args.smoke))
            show(outcomes[-1])
    finally:
        environment.close()
    print(json.dumps(counts(outcomes)))
    write({**counts(outcomes), "tasks": [asdict(outcome) for outcome in outcomes]}, args.json)
    return int(any(not outcome.as_expected for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
