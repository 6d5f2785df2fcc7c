"""`benchmarks/vm_desktops.py` in small runs as it is."""

import json
import subprocess
import sys

import pytest
from support import ROOT
from support.machines import BOOT_TIMEOUT_S

pytest.importorskip("desktop_env")

pytestmark = pytest.mark.vm


def test_the_smoke_form_finds_clones_cheaper_than_boots_and_nothing_left(config, image, folder, tmp_path):
    figures = tmp_path / "figures.json"
    command = [sys.executable, "benchmarks/vm_desktops.py", "--smoke", "--image", image.disk, "--json", figures]
    command += [f"--vm={name}={getattr(config, name)}" for name in ("binary", "folder")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=4 * BOOT_TIMEOUT_S)
    told = json.loads(figures.read_text())
    assert told["reset_over_cold_boot"] < 0.5
    assert told["memory_over_cold"] < 1
    assert (told["leaks"], told["same_draws"], told["same_verdicts"]) == (0, 0, told["tasks"])
