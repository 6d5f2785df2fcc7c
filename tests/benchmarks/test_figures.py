"""The command line of benchmarks, and the file that they write."""

import json
import signal
import sys

import pytest
from figures import RESULTS, Arguments, report

pytestmark = pytest.mark.study


@pytest.fixture
def parse(monkeypatch):
    def parse(*argv):
        monkeypatch.setattr(sys, "argv", ["benchmarks/desktop.py", *argv])
        arguments = Arguments("What it costs.", "four desktops")
        arguments.add_size("--desktops", 16, 4, "how many")
        return arguments.parse()

    handler = signal.getsignal(signal.SIGTERM)
    yield parse
    signal.signal(signal.SIGTERM, handler)


def test_a_size_is_the_full_one_the_small_one_or_the_one_that_was_asked_for(parse):
    assert parse().desktops == 16
    assert parse("--smoke").desktops == 4
    assert parse("--smoke", "--desktops", "2").desktops == 2


def test_figures_are_written_where_they_were_asked_for(parse, tmp_path, capsys):
    path = tmp_path / "new" / "figures.json"
    report({"start_s": 0.5, "desktops": 4}, parse("--json", str(path)).json)
    assert json.loads(path.read_text()) == {"start_s": 0.5, "desktops": 4}
    assert capsys.readouterr().out.splitlines() == ["start_s  0.5000", "desktops 4"]
    assert parse("--json").json == RESULTS / "desktop.json"
    assert parse().json is None
