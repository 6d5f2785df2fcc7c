"""The stock trainer process, unmodified, on real desktops: two steps with a replay."""

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
# Tasks of one or two actions, which a short imitation learns about half-way.
TASKS = ["dialog-confirm-yes", "dialog-confirm-no", "message-press-green", "radio-size-large"]

pytestmark = [pytest.mark.trainer, pytest.mark.desktop]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for task_id in TASKS:
        shutil.copy(ROOT / "arpo_verl/tasks/embedded" / f"{task_id}.json", folder)
    return folder


@pytest.fixture(scope="module")
def policy(tasks, tmp_path_factory) -> Path:
    """A policy that succeeds in some rollouts and fails in others."""
    out = tmp_path_factory.mktemp("policy") / "policy"
    command = [sys.executable, "-m", "arpo_verl.policy", "--out", str(out), "--tasks", str(tasks)]
    subprocess.run([*command, "--target-success", "0.25"], check=True)
    return out


@pytest.fixture(scope="module")
def run(tasks, policy, tmp_path_factory):
    """Two steps of 16 groups of two, each task four times a step: groups that fail find a stored success."""
    folder = tmp_path_factory.mktemp("run")
    advantages = folder / "advantages"
    advantages.mkdir()
    env = {
        **os.environ,
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "record_advantages",
        "PYTHONPATH": str(Path(__file__).parent),
        "ARPO_VERL_ADVANTAGES_DIR": str(advantages),
    }
    overrides = [
        f"run_dir={folder}",
        f"actor_rollout_ref.model.path={policy}",
        f"data.train_files={tasks}",
        f"data.val_files={tasks}",
        "+data.tasks.repeat=4",
        "data.train_batch_size=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.rollout.n=2",
        "trainer.total_training_steps=2",
        "trainer.total_epochs=2",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
    ]
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(ROOT / "recipes")]
    result = subprocess.run(
        [*command, "--config-name", "embedded", *overrides], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row["data"] for row in rows if "replay/injected" in row["data"]]
    records = [torch.load(path) for path in sorted(advantages.iterdir())]
    return folder, result.stdout, steps, records


def test_the_trainer_makes_its_two_steps(run):
    _, _, steps, records = run
    assert len(steps) == 2 and len(records) == 2
    assert all(len(record["groups"]) == 32 for record in records)


def test_a_success_is_replayed_into_a_group_that_failed(run):
    _, _, steps, _ = run
    assert steps[0]["replay/injected"] == 0, "nothing was stored before the first step"
    assert steps[1]["replay/injected"] >= 1


def test_the_trainer_used_the_replays_in_its_advantages(run):
    """Where every recorded episode of a group failed, a reward of 1 in the trainer's hands is a replay.

    In a group of two, a success and a failure have the advantages +1 and -1 by the population sigma.
    """
    folder, _, steps, records = run
    for number, (step, record) in enumerate(zip(steps, records, strict=True), start=1):
        groups = defaultdict(list)
        for group, reward, advantage in zip(record["groups"], record["rewards"], record["advantages"], strict=True):
            groups[group].append((reward.item(), advantage.item()))
        for rows in groups.values():
            expected = [0.0, 0.0] if rows[0][0] == rows[1][0] else [-1.0, 1.0]
            assert [advantage for _, advantage in sorted(rows)] == pytest.approx(expected, abs=1e-4)
        successes = played_successes(folder, number)
        replayed = [g for g, rows in groups.items() if not any(successes[g]) and max(rows)[0] == 1.0]
        assert len(replayed) == step["replay/injected"]


def played_successes(folder: Path, step: int) -> dict[str, list[float]]:
    """What the desktops' evaluators said of each group's own episodes, as recorded."""
    successes = defaultdict(list)
    for path in (folder / "trajectories" / f"step_{step:06d}").glob("*/episode.json"):
        episode = json.loads(path.read_text())
        successes[episode["uid"]].append(episode["success"])
    return successes


def test_rollout_engine_and_trainer_agree_on_probabilities(run):
    _, _, steps, _ = run
    assert steps[0]["training/rollout_probs_diff_max"] < 0.01


def test_the_last_lines_tell_what_was_reached_and_where(run):
    folder, stdout, _, _ = run
    for line in (
        "replays injected",
        "success, first 5 steps",
        str(folder / "metrics.jsonl"),
        str(folder / "trajectories"),
    ):
        assert line in stdout
    episodes = list((folder / "trajectories").glob("step_*/*/episode.json"))
    assert len(episodes) == 64
