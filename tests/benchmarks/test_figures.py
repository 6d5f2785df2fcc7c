"""The command line that benchmarks have in common."""

import signal

import figures
import pytest


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
