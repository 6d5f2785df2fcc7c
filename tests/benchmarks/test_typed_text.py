"""The benchmark of typed text: what it hears, what it takes for wrong, and that it runs."""

import json
import subprocess
import sys

import pytest
from support import ROOT

pytest.importorskip("desktop_env")

import typed_text  # noqa: E402

pytestmark = pytest.mark.study
MAP = ["m 50 65505 0", "m 37 65507 0", "m 36 65293 0", "m 38 97 65", "m 10 49 33", "m 8 0 0"]


def spelt(*events):
    heard = typed_text.Heard()
    for line in (*MAP, *events):
        heard.hear(line)
    return heard.text


def test_key_events_spell_what_the_map_of_their_moment_says():
    assert spelt("p 38", "r 38", "p 50", "p 38", "r 38", "p 10", "r 10", "r 50", "p 10", "r 10", "p 36") == "aA!1\n"
    assert spelt("m 8 233 233", "p 8", "r 8", f"m 8 {0x1004E2D} {0x1004E2D}", "p 8", "r 8") == "é中"
    assert spelt("p 37", "p 38", "r 38", "r 37", "p 38") == "a"  # a hotkey types nothing


def test_a_line_that_is_missing_late_or_another_is_wrong():
    assert typed_text.differing(["a", "b", "c"], ["a", "b", "c", ""]) == []
    assert typed_text.differing(["a", "b", "c"], ["a", "c"]) == [1, 2]
    assert typed_text.differing(["a"], []) == [0]


def test_the_lines_are_of_all_kinds_and_have_nothing_that_a_field_does_not_take():
    lines = typed_text.lines(1000, 33)
    assert len(set(lines)) == 1000 and lines == typed_text.lines(1000, 33)
    text = "".join(lines)
    assert set(map(chr, range(32, 127))) <= set(text) and {"é", "한", "👩", "\u200d"} <= set(text)
    assert not set(text) & set("\t\n\r") and all(line == line.strip() for line in lines)


@pytest.mark.desktop
@pytest.mark.release
def test_the_benchmark_runs_in_small(tmp_path):
    path = tmp_path / "typing.json"
    words = [sys.executable, str(ROOT / "benchmarks" / "typed_text.py"), "--smoke", "--json", str(path)]
    subprocess.run(words, check=True, timeout=300)
    figures = json.loads(path.read_text())
    assert (figures["wrong_lines"], figures["clipboard_changed"]) == (0, 0)
    assert set(figures["programs"]) == {"gtk_field", "gtk_editor", "xterm"}
