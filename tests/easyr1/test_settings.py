"""Our sections beside EasyR1's: taken out before it sees them, and checked."""

from types import SimpleNamespace

import pytest
import yaml
from support import ROOT

from arpo_verl.easyr1.settings import check_stock, read_config, split_config
from arpo_verl.errors import ConfigError

RECIPES = sorted(path.stem for path in (ROOT / "recipes" / "easyr1").glob("*.yaml"))


def stock_of(theirs, **changes):
    """EasyR1's configuration, as far as `check_stock` looks at it."""
    rollout = {"n": 1, "limit_images": 0, **theirs["worker"]["rollout"]}
    data = {"mini_rollout_batch_size": None, "rollout_batch_size": 512, **theirs["data"]}
    algorithm = {"adv_estimator": "grpo", "online_filtering": False, **theirs["algorithm"]}
    for section in (rollout, data, algorithm):
        section.update((name, value) for name, value in changes.items() if name in section)
    trainer = SimpleNamespace(n_gpus_per_node=theirs["trainer"]["n_gpus_per_node"], nnodes=theirs["trainer"]["nnodes"])
    return SimpleNamespace(
        worker=SimpleNamespace(rollout=SimpleNamespace(**rollout)),
        data=SimpleNamespace(**data),
        algorithm=SimpleNamespace(**algorithm),
        trainer=trainer,
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_read_by_its_name_and_its_numbers_fit(name, tmp_path):
    door = read_config([f"config=easyr1/{name}", "data.train_files=embedded", f"run_dir={tmp_path}"])
    assert list(door.train_files) == ["embedded"] and door.agent.trajectory_dir == str(tmp_path / "trajectories")
    assert door.theirs["trainer"]["save_checkpoint_path"] == str(tmp_path / "checkpoints")
    assert not {"gui_agent", "environment", "replay", "run_dir", "ray_kwargs"} & set(door.theirs)
    assert not {"tasks", "train_files", "val_files"} & set(door.theirs["data"])
    check_stock(door, stock_of(door.theirs))


def test_an_override_reaches_both_sides(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"data": {"train_files": ["a.json", "b.json"], "seed": 1}}))
    door = read_config([f"config={file}", "data.seed=7", "replay.enable=false", "data.tasks.repeat=2"])
    assert door.theirs["data"] == {"seed": 7} and door.train_files == ["a.json", "b.json"]
    assert not door.replay.enable and door.tasks.repeat == 2 and door.val_files == []


def test_all_that_is_wrong_is_said_at_once():
    values = {
        "gui_agent": {"context": "window", "max_setps": 3},
        "replay": {"capacity_per_task": 0},
        "data": {"tasks": {"sampling": "frontier"}},
    }
    with pytest.raises(ConfigError) as error:
        split_config(values)
    for text in ("gui_agent.max_setps", "replay.capacity_per_task", "data.train_files", "data.tasks.sampling"):
        assert text in str(error.value)
    with pytest.raises(ConfigError, match="gui_agent.context must be full, got 'window'"):
        split_config({"gui_agent": {"context": "window"}, "data": {"train_files": "t.json"}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adv_estimator": "rloo"}, "algorithm.adv_estimator must be grpo"),
        ({"online_filtering": True}, "algorithm.online_filtering must be false"),
        ({"mini_rollout_batch_size": 4}, "data.mini_rollout_batch_size must be null"),
        ({"n": 1}, "worker.rollout.n must be 2 or more"),
        ({"rollout_batch_size": 7, "n": 3}, "a multiple of the 8 GPUs"),
        ({"limit_images": 0}, "worker.rollout.limit_images must be at least 8"),
    ],
)
def test_what_easyr1_would_fail_on_or_do_silently_is_refused(changes, message):
    door = read_config(["config=easyr1/embedded"])
    with pytest.raises(ConfigError, match=message):
        check_stock(door, stock_of(door.theirs, **changes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config=nowhere.yaml"], "cannot be read"),
        (["data.seed=1"], "config must be a YAML file or a recipe"),
        (["config=easyr1/embedded", "--fast"], "OPTION=VALUE"),
    ],
)
def test_a_wrong_command_line_is_explained(arguments, message):
    with pytest.raises(ConfigError, match=message):
        read_config(arguments)
