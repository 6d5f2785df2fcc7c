"""The study of evaluations runs in small."""

import json
import subprocess
import sys

import pytest
from support import ROOT

pytestmark = [pytest.mark.desktop, pytest.mark.study, pytest.mark.slow]


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
