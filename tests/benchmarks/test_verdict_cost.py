"""`benchmarks/verdict_cost.py` runs in small and pairs both ways."""

import json
import subprocess
import sys

import pytest
from support import ROOT

pytest.importorskip("desktop_env")
pytestmark = [pytest.mark.study, pytest.mark.desktop, pytest.mark.release]


def test_it_runs_in_small(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/verdict_cost.py"), "--smoke", "--json", str(tmp_path / "x.json")]
    subprocess.run(command, check=True, timeout=300)
    figures = json.loads((tmp_path / "x.json").read_text())
    for kind in ("command", "file", "both"):
        assert figures[f"{kind}_boxed_s"] > 0 and figures[f"{kind}_unboxed_s"] > 0 and figures[f"{kind}_ratio"] > 0
    assert figures["host_pss_mib"] > 50 and figures["box_uss_mib"] > 1 and figures["boxed_cpu_s"] > 0
