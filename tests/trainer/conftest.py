"""The stock trainer process, unmodified, on real desktops: one run that is killed, and one that goes on from it."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trainer_process import TrainerProcess, wait_until

from arpo_verl.cli.main import main

ROOT = Path(__file__).parents[2]
# Tasks of one or two actions, which a short imitation learns about half-way.
TASKS = ["dialog-confirm-yes", "dialog-confirm-no", "message-press-green", "radio-size-large"]
# 16 groups of two a step, each task four times: groups that fail find a stored success.
OVERRIDES = [
    "+data.tasks.repeat=4",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.rollout.n=2",
    "trainer.total_epochs=4",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=1",
    "trainer.max_actor_ckpt_to_keep=null",
]


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run left behind, by training step."""

    folder: Path
    metrics: dict[int, dict]
    """What veRL logged."""
    estimated: dict[int, dict]
    """What `replay_grpo` took and gave; see `record_advantages.py`."""
    restored: list
    """The store's trajectories when the sampler was made."""
    stdout: str

    @classmethod
    def read(cls, folder: Path, first_step: int, stdout: str) -> "Run":
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        records = sorted((folder / "recorded").glob("advantages-*.pt"))
        return cls(
            folder,
            {row["step"]: row["data"] for row in rows if "replay/injected" in row["data"]},
            {first_step + number: torch.load(path) for number, path in enumerate(records)},
            json.loads((folder / "recorded" / "store.json").read_text()),
            stdout,
        )


@pytest.fixture(scope="session")
def tasks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for task_id in TASKS:
        shutil.copy(ROOT / "arpo_verl/tasks/embedded" / f"{task_id}.json", folder)
    return folder


@pytest.fixture(scope="session")
def policy(tasks, tmp_path_factory) -> Path:
    """A policy that succeeds in some rollouts and fails in others."""
    out = tmp_path_factory.mktemp("policy") / "policy"
    command = [sys.executable, "-m", "arpo_verl.policy", "--out", str(out), "--tasks", str(tasks)]
    subprocess.run([*command, "--target-success", "0.25"], check=True)
    return out


@pytest.fixture(scope="session")
def seeds(policy) -> Path:
    """A store of the expert's demonstrations, which are one a task and were written by no policy."""
    (demonstrations,) = policy.parent.glob("policy-demonstrations-*")
    recipe = ["--recipe", str(ROOT / "recipes" / "embedded.yaml"), "--set", f"actor_rollout_ref.model.path={policy}"]
    out = policy.parent / "seeds"
    assert main(["replay", "seed", str(demonstrations), *recipe, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def start(tasks, policy, seeds):
    """Start the trainer in a folder, to the end of a step."""

    def start_in(folder: Path, steps: int) -> TrainerProcess:
        paths = [f"run_dir={folder}", f"actor_rollout_ref.model.path={policy}", f"replay.seed_from={seeds}"]
        paths += [f"data.train_files={tasks}", f"data.val_files={tasks}"]
        return TrainerProcess(folder, [*paths, *OVERRIDES, f"trainer.total_training_steps={steps}"])

    return start_in


@pytest.fixture(scope="session")
def killed(start, tmp_path_factory):
    """Two whole steps with their checkpoints; in the middle of the third, `kill -9` of the trainer's process group.

    Returns:
        The run, and the processes that it had when it was killed.
    """
    folder = tmp_path_factory.mktemp("killed")
    process = start(folder, steps=5)

    def is_in_third_step() -> bool:
        process.check_running()
        return any((folder / "trajectories").glob("step_000003/*/episode.json"))

    wait_until(is_in_third_step, timeout_s=3600)
    processes = process.kill()
    return Run.read(folder, 1, process.stdout()), processes


@pytest.fixture(scope="session")
def run(killed) -> Run:
    """The two whole steps."""
    return killed[0]


@pytest.fixture(scope="session")
def resumed(run, start, tmp_path_factory) -> Run:
    """The killed run's folder as it was after its first step, with the trainer started in it for one more step."""
    folder = tmp_path_factory.mktemp("resumed")
    checkpoint = Path("checkpoints", "global_step_1")
    shutil.copytree(run.folder / checkpoint, folder / checkpoint)
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")
    process = start(folder, steps=2)
    process.wait()
    return Run.read(folder, 2, process.stdout())
