"""The family of docs/model-families.md in the stock trainer. The shipped policy does not speak its grammar, so each
episode ends at its first reply, is scored as malformed, and is trained on."""

import os
import subprocess
import sys

import pytest
from support import documents
from trainer_run import ROOT, read_steps

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

SMALL = ["data.train_files=[families:training:22:1,families:training:39:1]", "data.train_batch_size=2"]
SMALL += ["actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_training_steps=1"]
SMALL += ["trainer.val_before_train=false", "trainer.test_freq=-1", "data.max_prompt_length=1024"]


def test_a_step_is_trained_with_a_family_from_outside(shipped, tmp_path):
    (code,) = documents.code("docs/model-families.md")
    (tmp_path / "line_family.py").write_text(code)
    command = [sys.executable, "-m", "arpo_verl.tools.cli.main", "train", "demo", f"run_dir={tmp_path / 'run'}"]
    command += [f"actor_rollout_ref.model.path={shipped}", "gui_agent.model_family=line_family:FAMILY", *SMALL]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (step,) = read_steps(tmp_path / "run").values()
    assert step["critic/score/max"] < 0 and "actor/grad_norm" in step
