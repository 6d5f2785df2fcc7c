"""The programs of docs/harness.md in the stock trainer, on embedded desktops: a command and a function."""

import json
import os
import subprocess
import sys

import pytest
from support import documents
from trainer_run import ROOT, read_steps

from arpo_verl.tools.policy.shipped import write_shipped

pytest.importorskip("openai", reason="the document's programs use OpenAI's client")
pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

_FOLDER = ROOT / "arpo_verl" / "tasks" / "embedded"
TASKS = f"{_FOLDER}/dialog-confirm-yes.json,{_FOLDER}/dialog-confirm-no.json"
SMALL = [f"data.train_files=[{TASKS}]", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=2"]
SMALL += ["actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_training_steps=1", "gui_agent.max_steps=3"]
SMALL += ["trainer.val_before_train=false", "trainer.test_freq=-1"]


@pytest.mark.parametrize("harness", ["command", "function"])
def test_a_step_is_trained_on_what_a_program_played(tmp_path, harness):
    for block in documents.code("docs/harness.md"):
        (tmp_path / block.split("\n")[0].removeprefix("# ")).write_text(block)
    tmp_path.chmod(0o755)  # a command's user is another
    write_shipped("embedded", tmp_path / "policy")
    named = {"command": f"[{sys.executable},{tmp_path / 'my_agent.py'}]", "function": "my_harness:play"}[harness]
    command = [sys.executable, "-m", "arpo_verl.tools.cli.main", "train", "embedded", f"run_dir={tmp_path / 'run'}"]
    command += [f"actor_rollout_ref.model.path={tmp_path / 'policy'}", f"+gui_agent.harness={named}", *SMALL]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (step,) = read_steps(tmp_path / "run").values()
    assert step["batch/rows"] >= 4 and "actor/grad_norm" in step
    records = list((tmp_path / "run").rglob("episode.json"))
    assert len(records) == 4
    for path in records:
        (first, *_) = json.loads(path.read_text())["turns"]
        assert first["request"]["messages"][0]["role"] == "system"
        assert (path.parent / "harness.log").is_file() == (harness == "command")
