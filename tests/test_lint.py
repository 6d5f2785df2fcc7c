"""What `make lint` refuses in the package, shown on a planted line each: a rule that is switched off is noticed."""

import subprocess
import sys

import pytest
from support import ROOT

pytest.importorskip("ruff")

PLANTED = {
    "S307": "eval(text)",
    "S102": "exec(text)",
    "S602": "import subprocess\nsubprocess.run(text, shell=True)",
    "S605": "import os\nos.system(text)",
    "S301": "import pickle\npickle.loads(text)",
    "S506": "import yaml\nyaml.load(text, Loader=yaml.Loader)",
    "S110": "try:\n    text()\nexcept Exception:\n    pass",
    "E722": "try:\n    text()\nexcept:\n    raise KeyError from None",
    "S113": "import requests\nrequests.get(text)",
    "S202": "import tarfile\ntarfile.open(text).extractall(text)",
    "S306": "import tempfile\ntempfile.mktemp()",
    "S501": "import requests\nrequests.get(text, verify=False, timeout=1)",
    "TID251": "from unittest.mock import patch\npatch.dict(text)",
}


@pytest.mark.parametrize("room", ["agent/actions", "desktops/osworld", "desktops/pool", "records"])
def test_a_dangerous_call_is_refused(room):
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--stdin-filename"]
    for rule, code in PLANTED.items():
        done = subprocess.run(
            [*command, f"arpo_verl/{room}/planted.py", "-"], input=code, cwd=ROOT, capture_output=True, text=True
        )
        assert f" {rule} " in done.stdout, (rule, done.stdout + done.stderr)


def test_more_lines_than_the_budget_are_refused(tmp_path):
    (tmp_path / "arpo_verl" / "room").mkdir(parents=True)
    (tmp_path / "arpo_verl" / "room" / "a.py").write_text("a = 1\n" * 3)
    for most, status in ((3, 0), (2, 1)):
        (tmp_path / "pyproject.toml").write_text(f"[tool.arpo_verl.lines]\narpo_verl = {most}\n")
        command = [sys.executable, ROOT / ".ci" / "lines.py", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == status and f"arpo_verl: 3 lines of Python (at most {most})" in done.stdout
        assert ("1 over its budget. Remove as many lines; or raise" in done.stdout) is bool(status)


def test_a_gpu_runs_path_is_counted_and_leaves_out_what_no_run_imports(tmp_path):
    plugin = tmp_path / "arpo_verl" / "plugin"
    plugin.mkdir(parents=True)
    for name in ("../__init__", "__init__", "agent_loop", "checkpoints", "dataset", "estimator", "unused", "used"):
        (plugin / f"{name}.py").write_text("a = 1\n")
    (plugin / "sampler.py").write_text("def sample():\n    from arpo_verl.plugin import used\n")
    (tmp_path / "pyproject.toml").write_text("[tool.arpo_verl.lines]\ngpu_run = 7\n")
    done = subprocess.run([sys.executable, ROOT / ".ci" / "lines.py", tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "gpu_run: 7 lines of Python (at most 7)\n"), done.stderr
