"""The study of evaluations: what it counts, its table, and that it runs."""

import json
import subprocess
import sys

import evaluation as study
import pytest
from support import ROOT

from arpo_verl.evaluation.results import Evaluated, Result
from arpo_verl.types import StopReason


def evaluated(scores):
    results = [
        Result(task_id, "", run, 8, score, 1, StopReason.FINISHED, "step_000000/x")
        for task_id, runs in scores.items()
        for run, score in enumerate(runs)
    ]
    return Evaluated(tuple(results), (), {}, dict.fromkeys(scores, ""))


def test_evaluations_of_one_policy_agree_and_those_of_two_do_not():
    mixed = {f"t{i}": [[1.0] * 4, [0.0] * 4, [1.0, 0.0, 1.0, 0.0]][i % 3] for i in range(16)}
    assert study.agreement(evaluated(mixed), evaluated(mixed)) >= 0.95
    good, bad = ({f"t{i}": [score] * 4 for i in range(16)} for score in (1.0, 0.0))
    assert not study._hold_each_other(study._scores(evaluated(good)), study._scores(evaluated(bad)))


def test_the_page_has_the_kept_figures():
    report = json.loads(study.RESULTS.read_text())
    text = study.PAGE.read_text()
    assert study.with_table(text, report) == text, "python benchmarks/evaluation.py --table"
    assert f"| {report['success_warm_started']:.1%} |" in text
    assert study.with_table(text, {**report, "success_warm_started": 0.123}) != text


@pytest.mark.desktop
@pytest.mark.study
@pytest.mark.release
def test_killed_resumed_and_over_http_it_is_the_same_policy(tmp_path):
    result = tmp_path / "evaluation.json"
    result.write_text('{"episodes_saved_share": 0.5}')
    command = [sys.executable, "benchmarks/evaluation.py", "--smoke", "--work", str(tmp_path / "work")]
    subprocess.run([*command, "--json", str(result)], cwd=ROOT, check=True, timeout=1200)
    report = json.loads(result.read_text())
    assert report["episodes_saved_share"] == 0.5
    assert (report["tasks"], report["episodes"], report["faults"], report["kills"]) == (3, 6, 0, 2)
    assert report["resumed_identical"] and report["endpoint_same_actions"] == report["endpoint_episodes"] == 6
    low, high = report["interval_greedy"]
    assert low <= report["success_greedy"] <= high
