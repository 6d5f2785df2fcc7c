"""`arpo-verl train` with the stock trainer."""

import re
import signal
import subprocess
import sys

import pytest
from support import take_interrupts
from trainer_run import ROOT

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

SMALL = ["data.train_files=[families:training:22:1,families:training:39:1]", "data.train_batch_size=2"]
SMALL += ["actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_training_steps=2"]
SMALL += ["trainer.val_before_train=false", "trainer.test_freq=-1"]


@pytest.fixture
def train(shipped, tmp_path):
    def train(*more):
        command = [sys.executable, "-m", "arpo_verl.tools.cli.main", "train", "demo", f"run_dir={tmp_path / 'run'}"]
        command += [f"actor_rollout_ref.model.path={shipped}", *SMALL, *more]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=ROOT, **pipes, preexec_fn=take_interrupts)

    return train


def test_a_run_that_ctrl_c_stopped_goes_on_with_one_line_a_step(train, tmp_path):
    with train() as front:
        shown = []
        for line in front.stdout:
            shown.append(line)
            if line.startswith("step 1 of 2"):
                front.send_signal(signal.SIGINT)
        err = front.stderr.read()
    assert front.returncode != 0, err
    assert shown[-1] == "stopped after step 1; the same command resumes after step 1\n"
    assert len(shown) < 20 and any(line.startswith("host memory") for line in shown)
    with train() as front:
        out, err = front.communicate()
    assert (front.returncode, err) == (0, "")
    (line,) = re.findall(r"^step.* of .*", out, re.M)
    assert re.fullmatch(r"step 2 of 2  success +[\d.]+%  replays \d+  faults \d+  \d+ s", line)
    assert "goes on      after step 1" in out
    assert sorted(path.name for path in (tmp_path / "run").glob("*.log")) == ["output.log"]
    assert "Started a local Ray instance" in (tmp_path / "run" / "output.log").read_text()


def test_what_a_worker_died_of_is_in_the_last_lines(train):
    with train("actor_rollout_ref.actor.optim.optimizer=NoSuchOptimizer") as front:
        out, err = front.communicate()
    assert front.returncode == 1
    assert "NoSuchOptimizer" in err and "before its first step" in err and "output.log" in err
