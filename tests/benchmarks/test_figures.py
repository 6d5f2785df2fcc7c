"""The command line that benchmarks have in common."""

import signal

import figures
import pytest


@pytest.fixture
def parse(monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def parsed(*words):
        monkeypatch.setattr("sys.argv", ["desktop.py", *words])
        return figures.Arguments("", smoke="small").parse()

    return parsed


def test_figures_go_into_the_results_of_the_benchmark_unless_a_path_is_given(parse, tmp_path):
    assert parse("--json").json == figures.RESULTS / "desktop.json"
    assert parse("--smoke", "--json", str(tmp_path / "a.json")).json == tmp_path / "a.json"
    assert parse().json is None


def test_a_smoke_run_does_not_replace_the_results_of_a_whole_one(parse, capsys):
    with pytest.raises(SystemExit):
        parse("--smoke", "--json")
    assert "--smoke needs --json PATH" in capsys.readouterr().err
