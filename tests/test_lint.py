"""What `make lint` refuses: more lines than the budget."""

import subprocess
import sys

import pytest
from support import ROOT

pytest.importorskip("ruff")


def test_more_lines_than_the_budget_are_refused(tmp_path):
    (tmp_path / "arpo_verl" / "room").mkdir(parents=True)
    (tmp_path / "arpo_verl" / "room" / "a.py").write_text("a = 1\n" * 3)
    for most, status in ((3, 0), (2, 1)):
        (tmp_path / "pyproject.toml").write_text(f"[tool.arpo_verl.lines]\narpo_verl = {most}\n")
        command = [sys.executable, ROOT / ".ci" / "lines.py", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == status and f"arpo_verl: 3 lines of Python (at most {most})" in done.stdout
        assert ("1 over its budget. Remove as many lines; or raise" in done.stdout) is bool(status)


def test_a_gpu_runs_path_is_what_imports_and_tables_reach(tmp_path):
    plugin = tmp_path / "arpo_verl" / "plugin"
    plugin.mkdir(parents=True)
    for name in "../__init__ __init__ agent_loop checkpoints dataset estimator named unused used".split():
        (plugin / f"{name}.py").write_text("a = 1\n")
    (plugin / "sampler.py").write_text("def sample():\n    from arpo_verl.plugin import used\n")
    (plugin / "used.py").write_text("TABLE = {'a': 'arpo_verl.plugin.named:A', 'b': 'arpo_verl.plugin.unused'}\n")
    (tmp_path / "pyproject.toml").write_text("[tool.arpo_verl.lines]\ngpu_run = 8\n")
    done = subprocess.run([sys.executable, ROOT / ".ci" / "lines.py", tmp_path], capture_output=True, text=True)
    counted = "gpu_run: may load 8 lines of Python (at most 8), must load 6\n"
    assert (done.returncode, done.stdout) == (0, counted), done.stderr
