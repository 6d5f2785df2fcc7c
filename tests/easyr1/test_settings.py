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
    data = {"mini_rollout_batch_size": None, "format_prompt": None, "rollout_batch_size": 512, **theirs["data"]}
    algorithm = {"adv_estimator": "grpo", "online_filtering": False, **theirs["algorithm"]}
    trainer, reward = {"val_freq": -1, "val_only": False, **theirs["trainer"]}, {"reward_function": None}
    for section in (rollout, data, algorithm, trainer, reward):
        section.update((name, value) for name, value in changes.items() if name in section)
    worker = SimpleNamespace(rollout=SimpleNamespace(**rollout), reward=SimpleNamespace(**reward))
    sections = {"data": data, "algorithm": algorithm, "trainer": trainer}
    return SimpleNamespace(worker=worker, **{name: SimpleNamespace(**values) for name, values in sections.items()})


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_read_by_its_name_and_its_numbers_fit(name, tmp_path):
    files = ("data.train_files=embedded", "data.val_files=embedded")
    door = read_config([f"config=easyr1/{name}", *files, f"run_dir={tmp_path}"])
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
        ({"n_gpus_per_node": 0}, "a multiple of the 0 GPUs"),
        ({"format_prompt": "r1.jinja"}, "data.format_prompt must be null"),
        ({"reward_function": "math.py"}, "worker.reward.reward_function must be null, got 'math.py'; a task's own"),
        ({"val_freq": 5}, "data.val_files must be task files"),
        ({"val_only": True}, "data.val_files must be task files"),
    ],
)
def test_what_easyr1_would_fail_on_or_do_silently_is_refused(changes, message):
    door = read_config(["config=easyr1/embedded", "data.val_files=null"])
    with pytest.raises(ConfigError, match=message):
        check_stock(door, stock_of(door.theirs, **changes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config=nowhere.yaml"], "cannot read the configuration"),
        (["data.seed=1"], "config must be a YAML file or a recipe"),
        (["config=easyr1/embedded", "--fast"], "OPTION=VALUE"),
        (["config=easyr1/embedded", "data.seed=[1"], "cannot read the configuration"),
        (["config=easyr1/embedded", "trainer=5"], "trainer must be a section of options, got 5"),
    ],
)
def test_a_wrong_command_line_is_explained(arguments, message):
    with pytest.raises(ConfigError, match=message):
        read_config(arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: [1\n", "cannot read the configuration"),
        ("- 1\n", "cannot read the configuration"),
        ("!!python/object/apply:os.getcwd []\n", "cannot read the configuration"),
        ("data: {train_files: '${nowhere}'}\n", "cannot read the configuration"),
        ("data: 3\n", "data must be a section of options, got 3"),
        ("gui_agent: 3\n", "gui_agent must be a section of options, got 3"),
        ("replay: 3\n", "replay must be a section of options, got 3"),
        ("data: {tasks: 3}\n", "data.tasks must be a section of options, got 3"),
        ("ray_kwargs: {ray_init: 3}\n", "ray_kwargs.ray_init must be a section of options, got 3"),
        ("data: {train_files: {a: 3}}\n", "data.train_files must be task files"),
        ("data: {val_files: [3]}\n", "data.val_files must be task files"),
        ("", "data.train_files must be task files"),
    ],
)
def test_a_file_of_another_form_is_explained(text, message, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config([f"config={tmp_path / 'mine.yaml'}"])
