"""The benchmark of the viewer runs."""

import json
import shutil
import subprocess
import sys

import pytest
from support import ROOT

pytest.importorskip("playwright", reason='pip install "arpo-verl[dev]" brings playwright')
pytestmark = [pytest.mark.study, pytest.mark.desktop, pytest.mark.release]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="it opens the pages in Debian's chromium")
def test_the_benchmark_runs_in_small(tmp_path):
    path = tmp_path / "viewer.json"
    words = [sys.executable, str(ROOT / "benchmarks" / "viewer.py"), "--smoke", "--json", str(path)]
    subprocess.run(words, check=True, timeout=600)
    figures = json.loads(path.read_text())
    assert (figures["episodes"], figures["runs"], figures["copies"]) == (80, 2, 60)
    assert set(figures["seconds"]) == {"runs", "overview", "list", "search"}
    assert all(0 < seconds < 60 for seconds in figures["seconds"].values())
    assert figures["export_bytes"] > 0 and figures["episode_open_ms_median"] > 0
