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


def test_groups_are_counted_as_they_could_be_drawn():
    seen = study.groups_seen([[True] * 4, [True, False] * 2], 2)
    assert seen["all_solved"] == pytest.approx((1 + 1 / 6) / 2, abs=0.03)
    assert seen["all_failed"] == pytest.approx(1 / 12, abs=0.03)
    assert seen["informative"] == pytest.approx(1 - seen["all_failed"] - seen["all_solved"])
    assert study.groups_seen([[True]], 2) == {}


@pytest.mark.desktop
@pytest.mark.study
@pytest.mark.slow
def test_it_runs(model_path, tmp_path):
    path = tmp_path / "figures.json"
    path.write_text('{"of_another": 1}')
    command = [sys.executable, "benchmarks/filter_tasks.py", "--smoke", "--policy", model_path, "--json", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    figures = json.loads(path.read_text())
    assert figures["of_another"] == 1
    found = figures["filter_tasks"]
    assert (found["episodes_of_all_runs"], found["episodes_that_do_nothing"]) == (6, 2)
    assert found["list_equal"] and found["trials_that_differ"] == 0
