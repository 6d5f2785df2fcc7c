"""`benchmarks/families.py` runs in small."""

import json
import subprocess
import sys

import pytest
from support import ROOT

from arpo_verl.tasks.families import SPLITS

pytest.importorskip("desktop_env")
pytestmark = [pytest.mark.study, pytest.mark.desktop, pytest.mark.release]


def test_it_runs_in_small(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/families.py"), "--smoke", "--json", str(tmp_path / "x.json")]
    subprocess.run(command, check=True, timeout=300)
    figures = json.loads((tmp_path / "x.json").read_text())
    for split in SPLITS:
        assert figures[f"{split}_solved"] == 6
        assert figures[f"{split}_set_up_s"] > 0 and figures[f"{split}_cpu_s"] > 0
