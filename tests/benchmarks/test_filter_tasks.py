"""The study of the filter: what it counts, and that it runs."""

import json
import subprocess
import sys

import filter_tasks as study
import pytest
from support import ROOT

from arpo_verl.evaluation.keep_rule import KeepRule

RULE = KeepRule.parse("1 <= successes <= 3", 4)


def test_outcomes_in_any_order_come_to_the_list_of_all_runs_where_nothing_is_risked():
    outcomes = {"mixed": [True, False, True, False], "never": [False] * 4, "rare": [False, False, False, True]}
    figures = study.simulate(outcomes, RULE, 0.0, 20)
    assert figures["lists_equal_share"] == 1 and figures["tasks_told_to_differ"] == 0
    assert 0 < figures["episodes_saved_share"] < 0.5


def test_groups_are_made_of_runs_that_chose_no_task():
    outcomes = {f"t{i}": [True, False] * 4 for i in range(4)} | {"never": [False] * 8}
    found = study.expected_and_seen(outcomes, 8, 40)
    assert (found["group_size"], found["lists"]) == (4, 40)
    # Of eight runs, four of them good, four are drawn: 68 of 70 draws are mixed.
    assert found["seen"]["informative"] == pytest.approx(68 / 70, abs=0.04)
    assert 0.5 < found["expected"]["informative"] < 1
    assert study.shares([[True, True], [False, False], [True, False], [True, False]]) == {
        "informative": 0.5,
        "with_replay": 0.75,
        "all_failed": 0.25,
        "all_solved": 0.25,
    }


@pytest.mark.desktop
@pytest.mark.study
@pytest.mark.release
def test_it_runs(model_path, tmp_path):
    path = tmp_path / "figures.json"
    path.write_text('{"of_another": 1}')
    command = [sys.executable, "benchmarks/filter_tasks.py", "--smoke", "--policy", model_path, "--json", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    figures = json.loads(path.read_text())
    assert figures["of_another"] == 1
    found = figures["filter_tasks"]
    assert (found["episodes_of_all_runs"], found["episodes_that_do_nothing"]) == (8, 2)
    assert found["list_equal"] and found["trials_that_differ"] == 0
