"""The tables of an evaluation, and OSWorld's layout."""

import csv
import io
import json
import re

import pytest
from support.evaluation_run import record

from arpo_verl.tools.evaluation.folder import EvaluationFolder
from arpo_verl.tools.evaluation.report import write_report
from arpo_verl.tools.evaluation.results import Evaluated, FailedTrial, Result, Trial
from arpo_verl.tools.evaluation.tables import table_of, to_csv, to_json, to_markdown
from arpo_verl.types import StopReason

SETTINGS = {"max_steps": [5, 15], "policy": {"model": "org/model"}}


def result(task_id, run, budget, success, domain="os", **values):
    values = {"turns": 3, "stop_reason": StopReason.FINISHED, "episode_id": "step_000000/x", **values}
    return Result(task_id, domain, run, budget, success, **values)


RESULTS = (
    result("a", 0, 5, 0.0, turns=5, stop_reason=StopReason.STEP_LIMIT),
    result("a", 1, 5, 1.0),
    result("a", 0, 15, 1.0, turns=7),
    result("a", 1, 15, 1.0),
    result("b", 0, 5, 0.0, "chrome", stop_reason=StopReason.PARSE_ERROR),
    result("b", 0, 15, 0.0, "chrome", stop_reason=StopReason.PARSE_ERROR),
)
FAULTS = (FailedTrial("b", 1, 15, "DesktopLostError", "gone"),)
EVALUATED = Evaluated(RESULTS, FAULTS, SETTINGS, {"a": "os", "b": "chrome", "c": ""})


def unaligned(evaluated):
    return re.sub(" +", " ", to_markdown(evaluated))


def test_a_row_a_budget_and_domain_in_the_order_of_the_tasks():
    rows = table_of(EVALUATED)
    assert [(row.budget, row.domain) for row in rows] == [
        (budget, domain) for budget in (5, 15) for domain in ("os", "chrome", "", None)
    ]
    success = {(row.budget, row.domain): row.summary.success for row in rows}
    assert (success[5, "os"], success[15, "os"], success[15, "chrome"], success[15, ""]) == (0.5, 1.0, 0.0, None)
    assert (success[5, None], success[15, None]) == (0.25, 0.5)


def test_a_fault_is_one_of_each_budget_that_it_would_have_told():
    faults = {(row.budget, row.domain): row.summary.faults for row in table_of(EVALUATED)}
    assert (faults[5, "chrome"], faults[15, "chrome"], faults[5, "os"], faults[15, None]) == (1, 1, 0, 1)


def test_markdown_says_what_is_left_out():
    text = unaligned(EVALUATED)
    assert "At most 5 turns:" in text and "At most 15 turns:" in text
    assert "| os | 1 | 2 | 50.0% | - | 100.0% | 4.0 | 0 | 0 |" in text
    assert "| **all** | 2 | 3 | **50.0%** |" in text
    assert "1 tasks have no result, so no figure includes them." in text
    assert "1 runs were lost to infrastructure failures, and are not scored." in text
    assert "Tasks have 1 to 2 runs: we average a task's own runs first" in text
    assert "pass@2 is over the 1 tasks with 2 runs." in text


def test_a_budget_that_is_not_played_apart_yet_is_no_fair_one():
    early = Evaluated(RESULTS[1:], (), SETTINGS, {"a": "os", "b": "chrome"})
    assert to_markdown(early).count("1 longer runs are not scored here yet") == 1
    assert "not scored here yet" not in to_markdown(EVALUATED)


def test_csv_and_json_have_the_same_figures():
    lines = list(csv.DictReader(io.StringIO(to_csv(EVALUATED))))
    table = to_json(EVALUATED)["table"]
    assert [float(line["success"]) if line["success"] else None for line in lines] == [row["success"] for row in table]
    assert [line["domain"] for line in lines] == ["os", "chrome", "", "all"] * 2
    assert lines[-1]["success_low"] and lines[0]["success_low"] == ""
    tasks = {task["task_id"]: task["runs"] for task in to_json(EVALUATED)["tasks"]}
    assert [run["success"] for run in tasks["a"]] == [0.0, 1.0, 1.0, 1.0] and tasks["c"] == []
    json.dumps(to_json(EVALUATED), allow_nan=False)


def test_a_domain_is_no_formula_and_breaks_no_table():
    hostile = Evaluated((), (), {"max_steps": [5]}, {"a": "=cmd|x", "b": "a\nb", "c": "\t=1<b>"})
    assert "'=cmd" in to_csv(hostile) and "'\t=1" in to_csv(hostile)
    assert all(f"| {cell} |" in unaligned(hostile) for cell in ("=1&lt;b>", "=cmd/x", "a b"))


@pytest.fixture
def written(tmp_path):
    """An evaluation's folder with the report of two tasks' episodes."""
    tasks = [{"task_id": "a", "domain": "os"}, {"task_id": "../b", "domain": ""}]
    (tmp_path / "evaluation.json").write_text(json.dumps({"settings": SETTINGS, "tasks": tasks}))
    for task_id, run, success in [("a", 0, 1.0), ("a", 1, 0.0), ("../b", 0, 0.5)]:
        record(EvaluationFolder(tmp_path), Trial(task_id, run, 15), success=success)
    write_report(tmp_path)
    return tmp_path


def test_the_report_is_files_in_the_evaluations_folder(written):
    assert (written / "results.md").read_text().count("**all**") == 2
    assert "success_low" in (written / "results.csv").read_text()
    assert json.loads((written / "results.json").read_text())["settings"] == SETTINGS
    before = {path: path.read_bytes() for path in written.rglob("*") if path.is_file()}
    write_report(written)
    assert {path: path.read_bytes() for path in written.rglob("*") if path.is_file()} == before


def test_osworlds_layout_has_a_number_a_run_and_stays_in_its_folder(written):
    root = written / "osworld_results"
    found = {str(path.relative_to(root)): float(path.read_text()) for path in root.rglob("result.txt")}
    assert found["max_steps_15/run_0/pyautogui/screenshot/model/os/a/result.txt"] == 1.0
    assert found["max_steps_15/run_1/pyautogui/screenshot/model/os/a/result.txt"] == 0.0
    assert sorted(found.values()) == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert {path.split("/")[-3] for path in found} == {"os", "other"}


def test_a_file_that_is_gone_is_gone_from_the_next_report(written):
    (episode,) = written.glob("trajectories/step_000000/a__*_1/episode.json")
    episode.unlink()
    write_report(written)
    assert not list(written.glob("osworld_results/*/run_1"))
