"""`benchmarks/test_suite.py`: a study in parts has every run once, all of one commit."""

import json
import sys

import pytest
import test_suite


def test_the_same_command_goes_on_with_the_missing_runs_of_its_commit(tmp_path, monkeypatch):
    path, played = tmp_path / "figures.json", []

    def run(seed, tests):
        if len(played) == 3:
            raise KeyboardInterrupt
        played.append(seed)
        return {"passed": 7, "failed": seed}

    monkeypatch.setattr(test_suite, "_run", run)
    monkeypatch.setattr(sys, "argv", ["test_suite.py", "--json", str(path), "--runs", "4"])
    with pytest.raises(KeyboardInterrupt):
        test_suite.main()
    assert json.loads(path.read_text())["runs"] == 3
    played.append("interrupted")
    test_suite.main()
    figures = json.loads(path.read_text())
    assert (
        played == [0, 1, 2, "interrupted", 3]
        and [row["busy"] for row in figures.pop("each")] == [True] * 2 + [False] * 2
    )
    assert figures == {"seconds": 0, "runs": 4, "failures": 6, "tests": 7}
    other = path.read_text().replace('"commit": "', '"commit": "other')
    path.write_text(other)
    played.clear()
    with pytest.raises(KeyboardInterrupt):
        test_suite.main()
    assert len({row["commit"] for row in json.loads(path.read_text())["each"]}) == 1
