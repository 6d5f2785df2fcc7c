"""`benchmarks/fuzz.py` runs each target, and finds what breaks a promise."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.study
pytest.importorskip("atheris")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PLANTED = """
from arpo_verl.agent.actions.keys import parse_keys
from arpo_verl.errors import ActionParseError
SNIPPETS, WORDS = ("ctrl c",), ("ctrl", "alt")

def planted(text):
    try:
        assert "alt" not in parse_keys(text), "planted"
    except ActionParseError:
        pass

TARGETS = {"planted": planted}
"""


def fuzz(script, *argv):
    return subprocess.run([sys.executable, script, *map(str, argv)], capture_output=True, text=True)


@pytest.mark.release
def test_every_target_runs_and_finds_nothing(tmp_path):
    done = fuzz(BENCHMARKS / "fuzz.py", "--smoke", "--json", tmp_path / "figures.json", "--found", tmp_path / "found")
    assert done.returncode == 0, done.stderr[-4000:]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["inputs"] >= 6000 and figures["broken"] == []
    assert all(figures[name]["edges"] > 20 for name in ("ui_tars", "qwen25_vl", "qwen3_vl", "keys", "typed", "episode"))


def test_a_broken_promise_is_found_and_its_input_kept(tmp_path):
    for name in ("fuzz.py", "figures.py"):
        shutil.copy(BENCHMARKS / name, tmp_path)
    (tmp_path / "fuzz_targets.py").write_text(PLANTED)
    found, figures = tmp_path / "found", tmp_path / "figures.json"
    done = fuzz(tmp_path / "fuzz.py", "--inputs", 200_000, "--found", found, "--json", figures)
    assert done.returncode == 1 and "AssertionError: planted" in done.stderr
    assert json.loads(figures.read_text())["broken"] == ["planted"]
    assert [path.name.startswith("planted-crash-") for path in found.iterdir()] == [True]
