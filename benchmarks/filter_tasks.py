"""How many episodes `arpo-verl filter-tasks` saves, and whether it comes to the list of all runs.

    python -m arpo_verl.policy --out .cache/policy       # once: the warm-started policy
    python benchmarks/filter_tasks.py --json             # about half an hour on two cores
    python benchmarks/filter_tasks.py --smoke

Two real ways to a list on the shipped suite, by the same policy at a rollout's temperature, 1: `evaluate`, 16 runs of
each task, and `filter-tasks` with the rule `1 <= successes <= 15`, in a folder of its own. A trial's replies are drawn
from the trial's own seed, so both get the same outcomes but where a desktop was faster or slower once; how many of the
trials that both played differ is told. `episodes_saved_share` counts what the filter played less than all runs, with
the episodes that do nothing as its cost; `list_equal` compares the two lists.

Then the outcomes of all runs are put to the filter again and again, in simulation: the runs of each task in another
order, episodes ending in another, at several --error.

A killed run goes on in --out.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import figures

from arpo_verl.evaluation.filtering import Fate, FilterRuns, count_runs, decide, outlook
from arpo_verl.evaluation.folder import EvaluationFolder
from arpo_verl.evaluation.keep_rule import KeepRule
from arpo_verl.evaluation.results import Evaluated, Result, Trial
from arpo_verl.evaluation.statistics import SOLVED
from arpo_verl.types import StopReason

ERRORS = (0.0, 0.02, 0.05, 0.1)
RESULTS = figures.RESULTS / "evaluation.json"
KEY = "filter_tasks"
DESKTOPS = 3
Outcomes = Mapping[str, Sequence[bool]]


def main() -> None:
    parser = figures.Arguments(__doc__, smoke="two tasks, four runs")
    parser.add_argument("--policy", type=Path, default=Path(".cache/policy"), metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the episodes here, and go on with them")
    parser.add_size("--runs", 16, 4, "runs of each task")
    parser.add_size("--orders", 200, 5, "orders of the outcomes in simulation")
    parser.set_defaults(json=None)
    arguments = parser.parse()
    with ExitStack() as stack:
        out = arguments.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        report = measure(arguments, out)
    figures.show(report | {KEY: "..."} if KEY in report else report)
    if arguments.json is not None:
        # `evaluation.json` is of several benchmarks: the figures of the others stay.
        path = RESULTS if arguments.json.name == "filter_tasks.json" else arguments.json
        kept = json.loads(path.read_text()) if path.is_file() else {}
        figures.write({**kept, **report}, path)


def measure(arguments: Any, out: Path) -> dict[str, Any]:
    """Play, compare and simulate."""
    runs = arguments.runs
    rule = KeepRule.parse(f"1 <= successes <= {runs - 1}", runs)
    machine = figures.machine()
    common = ["--recipe", "embedded", "--model", str(arguments.policy), "--temperature", "1", "--runs", str(runs)]
    common += ["--desktops", str(DESKTOPS)]
    if arguments.smoke:
        names = ("dialog-confirm-yes", "entry-type-name")
        common += ["--tasks", ",".join(str(Path("arpo_verl/tasks/embedded") / f"{name}.json") for name in names)]
    play("evaluate", *common, "--out", str(out / "all_runs"))
    play("filter-tasks", *common, "--keep", f"1 <= successes <= {runs - 1}", "--out", str(out / "filter"))
    full = EvaluationFolder(out / "all_runs").read()
    filtered = EvaluationFolder(out / "filter").read()
    found = json.loads((out / "filter" / "filter.json").read_text())
    outcomes = outcomes_of(full)
    complete = {task_id: seen for task_id, seen in outcomes.items() if len(seen) == runs}
    wanted = [task_id for task_id, seen in complete.items() if rule.low <= sum(seen) <= rule.high]
    listed = [task["task_id"] for task in found["tasks"] if task["fate"] == Fate.KEPT.value]
    idle = len(EvaluationFolder(out / "filter" / "do_nothing").read().results)
    by_trial = {(r.task_id, r.run): r.success for r in full.results}
    both = [(by_trial[r.task_id, r.run], r.success) for r in filtered.results if (r.task_id, r.run) in by_trial]
    figures_of_filter = {
        "runs": runs,
        "tasks": len(full.domains),
        "tasks_with_all_runs": len(complete),
        "episodes_of_all_runs": len(full.results),
        "episodes_of_the_filter": found["episodes"],
        "episodes_that_do_nothing": idle,
        "error": found["error"],
        "expected_to_differ": found["expected_to_differ"],
        "kept_by_all_runs": len(wanted),
        "kept_by_the_filter": len(listed),
        "list_equal": sorted(wanted) == sorted(listed),
        "only_by_all_runs": sorted(set(wanted) - set(listed)),
        "only_by_the_filter": sorted(set(listed) - set(wanted)),
        "counts": found["counts"],
        "trials_played_by_both": len(both),
        "trials_that_differ": sum(first != second for first, second in both),
        "groups_expected": found["groups"]["list"],
        "groups_of_the_other_half": expected_and_seen(complete, runs, arguments.orders),
        "machine": machine,
        "in_simulation": [simulate(complete, rule, error, arguments.orders) for error in ERRORS],
    }
    saved = 1 - (found["episodes"] + idle) / len(full.results)
    return {"episodes_saved_share": saved, KEY: figures_of_filter}


def play(*command: str) -> None:
    """Run a command of `arpo-verl`."""
    ended = subprocess.run([sys.executable, "-m", "arpo_verl.cli.main", *command])
    if ended.returncode not in (0, 1):  # 1: infrastructure failed something, or nothing is kept, which is told
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}")


def outcomes_of(evaluated: Evaluated) -> Outcomes:
    """Whether each run solved its task, by task, in the order of the runs."""
    outcomes: dict[str, list[bool]] = {}
    for result in evaluated.results:
        outcomes.setdefault(result.task_id, []).append(result.success >= SOLVED)
    return outcomes


def expected_and_seen(outcomes: Outcomes, runs: int, orders: int) -> dict[str, Any]:
    """The outlook that a filter gives by half of the runs, and the groups that the other half then makes: of the same
    tasks, but of runs that had no part in choosing them."""
    size = runs // 2
    rule = KeepRule(1, size - 1, size)
    expected, seen = [], []
    for number in range(orders):
        rng = random.Random(number)
        shuffled = {task_id: rng.sample(list(its), runs) for task_id, its in outcomes.items()}
        results = filter_once({task_id: its[:size] for task_id, its in shuffled.items()}, rule, 0.0, rng)
        rates = count_runs(Evaluated(tuple(results), (), {}, {}), rule, 1)
        kept = [task.task_id for task in decide(rates, outcomes, (), rule, 0.0) if task.fate is Fate.KEPT]
        if kept:
            expected.append(dataclasses.asdict(outlook(rates, kept, size)))
            seen.append(shares([shuffled[task_id][size:] for task_id in kept]))
    return {"group_size": size, "lists": len(seen), "expected": mean_of(expected), "seen": mean_of(seen)}


def shares(groups: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Of some groups: how many are informative, and so on."""
    failed = statistics.fmean(float(not any(group)) for group in groups)
    solved = statistics.fmean(float(all(group)) for group in groups)
    return {"informative": 1 - failed - solved, "with_replay": 1 - solved, "all_failed": failed, "all_solved": solved}


def mean_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(row[name] for row in rows) for name in (rows[0] if rows else ())}


def simulate(outcomes: Outcomes, rule: KeepRule, error: float, orders: int) -> dict[str, Any]:
    """The filter on these outcomes, in other orders: what it saves, and how often its list is another."""
    wanted = {task_id for task_id, runs in outcomes.items() if rule.low <= sum(runs) <= rule.high}
    saved, differing, told = [], [], []
    for number in range(orders):
        rng = random.Random(number)
        shuffled = {task_id: rng.sample(list(runs), len(runs)) for task_id, runs in outcomes.items()}
        results = filter_once(shuffled, rule, error, rng)
        rates = count_runs(Evaluated(tuple(results), (), {}, {}), rule, 1)
        decided = decide(rates, outcomes, (), rule, error)
        kept = {task.task_id for task in decided if task.fate is Fate.KEPT}
        saved.append(1 - len(results) / (rule.runs * len(outcomes)))
        differing.append(len(kept ^ wanted))
        told.append(sum(task.doubt for task in decided))
    return {
        "error": error,
        "orders": orders,
        "episodes_saved_share": statistics.fmean(saved),
        "episodes_saved_share_least": min(saved),
        "lists_equal_share": statistics.fmean(float(count == 0) for count in differing),
        "tasks_that_differ": statistics.fmean(differing),
        "tasks_told_to_differ": statistics.fmean(told),
    }


def filter_once(outcomes: Outcomes, rule: KeepRule, error: float, rng: random.Random) -> list[Result]:
    """One filter, on as many desktops as the real one, whose episodes end in any order."""
    scheduler = FilterRuns(list(outcomes), rule, 1, error)
    running: list[Trial] = []
    results: list[Result] = []
    while True:
        running += scheduler.next_trials(DESKTOPS - len(running)) if len(running) < DESKTOPS else []
        if not running:
            return results
        trial = running.pop(rng.randrange(len(running)))
        success = float(outcomes[trial.task_id][trial.run])
        results.append(Result(trial.task_id, "", trial.run, 1, success, 1, StopReason.FINISHED, ""))
        scheduler.finished(trial, (results[-1],))


if __name__ == "__main__":
    main()
