"""The command line that benchmarks have in common, and how the study of the suite goes on."""

import json
import signal
import sys

import figures
import pytest
import test_suite


def test_figures_go_where_they_belong_and_those_of_a_smoke_run_never_replace_whole_ones(monkeypatch, tmp_path, capsys):
    def parse(*words):
        monkeypatch.setattr("sys.argv", ["desktop.py", *words])
        return figures.Arguments("", smoke="small").parse()

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert parse("--json").json == figures.RESULTS / "desktop.json"
    assert parse("--smoke", "--json", str(tmp_path / "a.json")).json == tmp_path / "a.json"
    assert parse().json is None
    with pytest.raises(SystemExit):
        parse("--smoke", "--json")
    assert "--smoke needs --json PATH" in capsys.readouterr().err


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
