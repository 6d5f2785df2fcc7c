"""The stock trainer process, unmodified, on real desktops: one run that is killed, and one that goes on from it."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from support import loading
from support.policies.demonstrations import collect_demonstrations, save_demonstrations
from trainer_run import ROOT, TrainerRun, Workplace
from verl.utils import hf_processor

from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.tasks.families import SCREEN, replies_of
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.tools.cli.main import main
from arpo_verl.tools.policy.shipped import write_shipped

# Of the demo's tasks, four that the shipped policy solves now and then; two groups of two of each in a step.
TASKS = tuple(f"families:training:{number}:1" for number in (22, 39, 70, 87))
GROUPS = 8
OVERRIDES = [f"data.train_files=[{','.join(TASKS)}]", "+data.tasks.repeat=2", f"data.train_batch_size={GROUPS}"]
OVERRIDES += ["actor_rollout_ref.actor.ppo_mini_batch_size=4", "trainer.save_freq=1"]
OVERRIDES += ["trainer.max_actor_ckpt_to_keep=null", "trainer.val_before_train=false", "trainer.test_freq=-1"]
DEMO = ROOT / "recipes" / "demo.yaml"
TIMEOUT_S = 3600.0


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run left behind, by training step."""

    folder: Path
    metrics: dict[int, dict]
    """What veRL logged."""
    rows: dict[int, dict]
    """What `replay_grpo` took and gave, padding left out; see `support/record_advantages.py`."""
    estimated: dict[int, dict]
    """The same of episodes, as their last rows have it."""
    restored: list
    """The store's trajectories when the sampler was made."""
    stdout: str

    @classmethod
    def read(cls, folder: Path, first_step: int, stdout: str) -> "Run":
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        records = [torch.load(path) for path in sorted((folder / "recorded").glob("advantages-*.pt"))]
        of_rows = [pick(record, [i for i, key in enumerate(record["keys"]) if key]) for record in records]
        of_episodes = [pick(record, last_rows(record["keys"])) for record in of_rows]
        return cls(
            folder,
            {row["step"]: row["data"] for row in rows if "replay/injected" in row["data"]},
            dict(enumerate(of_rows, first_step)),
            dict(enumerate(of_episodes, first_step)),
            json.loads((folder / "recorded" / "store.json").read_text()),
            stdout,
        )


def pick(record: dict, rows: list[int]) -> dict:
    return {name: [values[row] for row in rows] for name, values in record.items()}


def last_rows(keys: list[str]) -> list[int]:
    """Of each episode, by position."""
    last = {}
    for position, key in enumerate(keys):
        episode, number = key.rsplit("_", 1)
        last[episode] = max(last.get(episode, (-1, -1)), (int(number), position))
    return [position for _, position in last.values()]


@pytest.fixture(scope="session")
def workplace(tmp_path_factory) -> Workplace:
    """Its policy succeeds in some rollouts and fails in others."""
    return Workplace.make(tmp_path_factory.mktemp("workplace"))


@pytest.fixture(scope="session")
def policy(workplace) -> Path:
    return workplace.policy


@pytest.fixture(scope="session")
def shipped(tmp_path_factory) -> Path:
    """The policy of the demo."""
    folder = tmp_path_factory.mktemp("shipped") / "policy"
    write_shipped("seeing", folder)
    return folder


@pytest.fixture(scope="session")
def seeds(shipped) -> Path:
    """A store of the expert's demonstrations, which are one a task and were written by no policy."""
    tasks = load_tasks(TASKS)
    environment = EnvironmentConfig(num_desktops=2, screen_size=SCREEN)
    image_size = ImageGeometry.from_processor(hf_processor(str(shipped))).image_size
    played = collect_demonstrations(tasks, replies_of, environment, image_size)
    save_demonstrations(shipped.parent / "demonstrations", played)
    recipe = ["--recipe", str(DEMO), "--set", f"actor_rollout_ref.model.path={shipped}"]
    out = shipped.parent / "seeds"
    assert main(["replay", "seed", str(shipped.parent / "demonstrations"), *recipe, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def start(shipped, seeds):
    """Start the trainer in a subfolder, to the end of a step, with `record_advantages.py` loaded."""

    def start_in(name: str, steps: int, *more: str) -> TrainerRun:
        folder = shipped.parent / name
        recorded = folder / "recorded"
        recorded.mkdir(parents=True, exist_ok=True)
        env = loading("record_advantages", ARPO_VERL_RECORDED=str(recorded))
        length = [f"trainer.total_training_steps={steps}", f"trainer.total_epochs={steps}"]
        seeded = [f"actor_rollout_ref.model.path={shipped}", f"replay.seed_from={seeds}"]
        return TrainerRun(folder, *OVERRIDES, *length, *seeded, *more, env=env, recipe=DEMO)

    return start_in


@pytest.fixture(scope="session")
def read_run():
    """`Run.read`."""
    return Run.read


@pytest.fixture(scope="session")
def killed(start):
    """A whole step with its checkpoint; in the middle of the second, `kill -9` of the trainer's process group.

    Returns:
        The run, and the processes that it had when it was killed.
    """
    trainer = start("killed", steps=5)
    second_step = trainer.run_dir / "trajectories" / "step_000002"
    trainer.wait_for(lambda: any(second_step.glob("*/episode.json")), TIMEOUT_S)
    processes = trainer.processes()
    trainer.kill()
    return Run.read(trainer.run_dir, 1, trainer.output()), processes


@pytest.fixture(scope="session")
def run(killed) -> Run:
    """The whole step, which is the first."""
    return killed[0]


@pytest.fixture(scope="session")
def resumed(run, start) -> Run:
    """The killed run's folder as it was after its first step, with the trainer started in it for one more step."""
    folder = run.folder.parent / "resumed"
    checkpoint = Path("checkpoints", "global_step_1")
    shutil.copytree(run.folder / checkpoint, folder / checkpoint)
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")
    trainer = start(folder.name, steps=2)
    trainer.wait(TIMEOUT_S)
    return Run.read(folder, 2, trainer.output())


@pytest.fixture(scope="session")
def runs(run, resumed) -> dict[int, Run]:
    """The run that made each step."""
    return {1: run, 2: resumed}
