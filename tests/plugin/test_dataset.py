"""The dataset as the trainer makes it: through veRL's own loader, collation and tensor dictionaries."""

import json

import pytest
from omegaconf import OmegaConf

from arpo_verl.errors import ConfigError, PatchLostError, TaskError

verl_dataset = pytest.importorskip("verl.utils.dataset.rl_dataset")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402

from arpo_verl.plugin.dataset import read_task  # noqa: E402
from arpo_verl.plugin.trainer_state import trainer_state  # noqa: E402
from arpo_verl.replay.groups import Group, Outcome  # noqa: E402

CUSTOM = {"path": "pkg://arpo_verl.plugin.dataset", "name": "TaskDataset"}


@pytest.fixture
def task_dir(tmp_path):
    evaluator = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["true"]},
        "expected": {"type": "rule", "rules": {"expected": ""}},
    }
    for number in range(5):
        # Specs of different shapes: nothing on the way may unite their keys.
        extra = {"config": [{"type": "sleep", "parameters": {"seconds": number}}]} if number % 2 else {}
        spec = {"id": f"task-{number}", "instruction": f"do {number}", "evaluator": evaluator, **extra}
        (tmp_path / f"{number}.json").write_text(json.dumps(spec))
    return tmp_path


def dataset(task_dir, max_samples=-1, **options):
    data = {"custom_cls": CUSTOM, "train_files": str(task_dir), "train_batch_size": 2, **options}
    model = {"actor": {"ppo_mini_batch_size": 2}, "rollout": {"n": 4}}
    recipe = OmegaConf.create({"data": data, "replay": {}, "actor_rollout_ref": model})
    return create_rl_dataset(str(task_dir), recipe.data, None, None, max_samples=max_samples)


def test_rows_survive_collation_and_the_trainers_tensor_dictionary(task_dir):
    rows = dataset(task_dir)
    loader = StatefulDataLoader(rows, batch_size=3, drop_last=True, collate_fn=verl_dataset.collate_fn)
    batch = tu.get_tensordict(next(iter(loader)))
    assert list(batch["index"]) == [0, 1, 2]
    for number in range(3):
        extra_info = batch["extra_info"][number]
        extra_info = getattr(extra_info, "data", extra_info)
        assert extra_info["task_id"] == f"task-{number}" and extra_info["index"] == number
        assert json.loads(extra_info["spec"]) == rows.tasks[number].spec
        assert read_task({"extra_info": extra_info}) == rows.tasks[number]
        reward_model = batch["reward_model"][number]
        assert getattr(reward_model, "data", reward_model)["ground_truth"] == f"task-{number}"
    prompts = [getattr(prompt, "data", prompt) for prompt in batch["raw_prompt"]]
    assert "do 2" in json.dumps(list(prompts[2]))


def test_rows_may_be_put_into_one_dictionary_with_what_the_loop_returns(task_dir):
    """The trainer merges each row with the loop's output before TransferQueue takes it."""
    rows = dataset(task_dir)
    merged = tu.list_of_dict_to_tensordict([rows[0] | {"num_turns": 2}, rows[1] | {"num_turns": 3}])
    assert len(merged) == 2


def test_selection_and_sample_limits_apply(task_dir):
    assert [t.task_id for t in dataset(task_dir, tasks={"ids": ["task-3", "task-1"]}).tasks] == ["task-1", "task-3"]
    assert [t.task_id for t in dataset(task_dir, max_samples=2).tasks] == ["task-0", "task-1"]
    shuffled = [dataset(task_dir, max_samples=3, shuffle=True, seed=7).tasks for _ in range(2)]
    assert shuffled[0] == shuffled[1] and len(shuffled[0]) == 3
    with pytest.raises(ConfigError, match="data.tasks.id is not an option; did you mean data.tasks.ids"):
        dataset(task_dir, tasks={"id": []})


def test_repeated_tasks_are_rows_of_their_own(task_dir):
    rows = dataset(task_dir, tasks={"ids": ["task-3"], "repeat": 2})
    assert [rows[i]["extra_info"]["task_id"] for i in range(len(rows))] == ["task-3", "task-3"]
    assert [rows[i]["index"] for i in range(len(rows))] == [0, 1]


@pytest.mark.parametrize("same_file", [True, False])
def test_validation_draws_each_task_once(task_dir, same_file):
    val_files = str(task_dir) if same_file else f"{task_dir}/../{task_dir.name}"
    files = {"train_files": str(task_dir), "val_files": val_files, "train_max_samples": -1, "val_max_samples": 0}
    options = OmegaConf.create({"custom_cls": CUSTOM, "train_batch_size": 10, **files, "tasks": {"repeat": 2}})
    training = create_rl_dataset(files["train_files"], options, None, None, True, files["train_max_samples"])
    validation = create_rl_dataset(files["val_files"], options, None, None, False, files["val_max_samples"])
    assert (len(training), len(validation)) == (10, 5)


def test_what_cannot_train_stops_the_trainer_before_it_starts(task_dir):
    with pytest.raises(ConfigError, match="data.train_batch_size must be at most 5, the rows of .*, got 8"):
        dataset(task_dir, train_batch_size=8, gen_batch_size=1)
    (task_dir / "9.json").write_text("{}")
    with pytest.raises(TaskError, match="9.json"):
        dataset(task_dir)


def test_the_spec_of_a_row_may_be_a_mapping_or_json():
    extra_info = {"task_id": "a", "instruction": "b"}
    for spec in ({"id": "a"}, '{"id": "a"}'):
        task = read_task({"extra_info": {**extra_info, "spec": spec}})
        assert (task.task_id, task.instruction, task.spec) == ("a", "b", {"id": "a"})


# --- The order of tasks --------------------------------------------------------------------------------------------


def loader(rows, batch_size=2):
    """As the trainer makes it."""
    options = {"batch_size": batch_size, "num_workers": 0, "drop_last": True, "collate_fn": verl_dataset.collate_fn}
    return StatefulDataLoader(rows, sampler=create_rl_sampler(rows.config, rows), **options)


class StockRows(torch.utils.data.Dataset):
    """A dataset that knows nothing of sampling: what veRL's own order is."""

    def __init__(self, rows):
        self.rows, self.config = rows, rows.config

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, item):
        return self.rows[item]


def plain(value):
    """Every bit of a batch or a state, in values that compare."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value


@pytest.mark.parametrize("order", [{"shuffle": True, "seed": 7}, {"shuffle": False}], ids=["random", "sequential"])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_uniform_sampling_is_the_stock_order_and_the_stock_state_bit_for_bit(task_dir, order, batch_size):
    rows = dataset(task_dir, tasks={"sampling": "uniform", "repeat": 2}, **order)
    ours, stock = loader(rows, batch_size), loader(StockRows(rows), batch_size)
    for _ in range(3):
        for batch, expected in zip(ours, stock, strict=True):
            assert plain(batch) == plain(expected)
            assert plain(ours.state_dict()) == plain(stock.state_dict())
    resumed = loader(rows, batch_size)
    next(iter(ours)), next(iter(stock))
    resumed.load_state_dict(stock.state_dict())
    rest, expected = list(resumed), list(stock._iterator)
    assert list(map(plain, rest)) == list(map(plain, expected)) and len(rest) == len(rows) // batch_size - 1


def test_verls_loader_by_itself_cannot_go_on_with_a_task_fewer(task_dir):
    ended = loader(dataset(task_dir, shuffle=True, seed=7, train_batch_size=1), batch_size=1)
    list(ended)
    (task_dir / "4.json").unlink()
    resumed = loader(dataset(task_dir, shuffle=True, seed=7, train_batch_size=1), batch_size=1)
    resumed.load_state_dict(ended.state_dict())
    for _ in range(2):  # the trainer tries twice
        with pytest.raises(StopIteration):
            next(iter(resumed))


def test_a_trainer_that_has_lost_our_patch_of_the_loader_is_refused(task_dir, monkeypatch):
    monkeypatch.setattr(StatefulDataLoader, "load_state_dict", StatefulDataLoader.load_state_dict.__wrapped__)
    with pytest.raises(PatchLostError, match="would use the task order of the checkpoint"):
        dataset(task_dir)


def frontier_rows(task_dir, **options):
    tasks = {"sampling": "frontier", **options.pop("tasks", {})}
    return dataset(task_dir, tasks=tasks, shuffle=True, seed=7, **options)


def drawn_ids(batch):
    return [extra_info["task_id"] for extra_info in batch["extra_info"]]


def train(loaded, steps, first_step=1):
    """Draw and play: task-1 and task-2 half the time, the others never solved. Returns what was drawn."""
    drawn = []
    for step in range(first_step, first_step + steps):
        try:
            batch = next(loaded.it)
        except StopIteration:  # as the trainer does it, at an epoch's end
            loaded.it = iter(loaded)
            batch = next(loaded.it)
        for task_id in drawn_ids(batch):
            drawn.append(task_id)
            solved = 2 if task_id in ("task-1", "task-2") else 0
            outcomes = [Outcome(f"u_{i}_0", task_id, float(i < solved), 0.0, False, "finished", 3) for i in range(4)]
            trainer_state(loaded.dataset.config).tell_frontier(step, [Group(task_id, tuple(outcomes))])
    return drawn


def opened(task_dir, **options):
    loaded = loader(frontier_rows(task_dir, **options))
    loaded.it = iter(loaded)
    return loaded


def test_frontier_sampling_draws_tasks_that_teach_more_often(task_dir):
    drawn = train(opened(task_dir), 40)
    assert sorted(drawn[:5]) == [f"task-{number}" for number in range(5)]
    counts = [drawn[20:].count(f"task-{number}") for number in range(5)]
    assert min(counts[1:3]) > 2 * max(counts[0], *counts[3:]) and min(counts) > 0


@pytest.mark.parametrize("steps", [0, 1, 2, 7], ids=["at the beginning", "in an epoch", "at its end", "later"])
def test_a_checkpoint_of_the_data_loader_holds_the_frontier(task_dir, tmp_path, steps):
    undisturbed = opened(task_dir)
    train(undisturbed, steps)
    torch.save(undisturbed.state_dict(), tmp_path / "data.pt")
    expected = train(undisturbed, 9, first_step=steps + 1)
    resumed = loader(frontier_rows(task_dir))
    resumed.load_state_dict(torch.load(tmp_path / "data.pt", weights_only=False))
    resumed.it = iter(resumed)
    assert train(resumed, 9, first_step=steps + 1) == expected


def test_a_run_may_take_up_frontier_sampling_and_leave_it(task_dir):
    uniform = loader(dataset(task_dir, shuffle=True, seed=7))
    next(iter(uniform))
    taken_up = loader(frontier_rows(task_dir))
    taken_up.load_state_dict(uniform.state_dict())
    taken_up.it = iter(taken_up)
    train(taken_up, 2)
    left = loader(dataset(task_dir, shuffle=True, seed=7))
    left.load_state_dict(taken_up.state_dict())
    assert next(iter(left)) and trainer_state(left.dataset.config).frontier is None


def test_frontier_sampling_draws_each_task_alike_however_often_it_is_repeated(task_dir):
    rows = frontier_rows(task_dir, tasks={"ids": ["task-0", "task-3"], "repeat": 3})
    assert len(rows) == 6
    assert sorted(train(opened(task_dir, tasks={"ids": ["task-0", "task-3"], "repeat": 3}), 1)) == ["task-0", "task-3"]


def test_frontier_sampling_refuses_what_would_draw_ahead_or_apart(task_dir):
    with pytest.raises(ConfigError, match="data.dataloader_num_workers must be 0 with data.tasks.sampling=frontier"):
        frontier_rows(task_dir, dataloader_num_workers=2)
    with pytest.raises(ConfigError, match="data.val_max_samples must be different from data.train_max_samples"):
        frontier_rows(task_dir, val_files=str(task_dir))  # validation would draw too, and take the sampler's word
    assert len(frontier_rows(task_dir, val_files=str(task_dir), val_max_samples=0)) == 5
    with pytest.raises(ConfigError, match="data.tasks.sampling must be one of uniform, frontier, got 'fronteer'"):
        dataset(task_dir, tasks={"sampling": "fronteer"})
    with pytest.raises(ConfigError, match="data.tasks.frontier.flor is not an option; did you mean"):
        dataset(task_dir, tasks={"frontier": {"flor": 0.1}})


def test_a_checkpoint_of_a_run_that_resumed_within_successes_is_refused_with_what_to_do(task_dir):
    trained = dataset(task_dir)
    trained.load_state_dict({})
    with pytest.raises(ConfigError, match="replay.mode=resume, which this version does not have; start a new run"):
        trained.load_state_dict({"resume": {"task-1": [2, 2, 1]}})


def test_sessions_of_a_task_that_is_drawn_twice_in_a_step_have_names_of_their_own(task_dir):
    from arpo_verl.plugin.agent_loop import _same_in_every_run

    def names():
        rows = opened(task_dir, tasks={"ids": ["task-1"], "repeat": 2}).it
        return [
            _same_in_every_run({"global_steps": 1, "session_id": 0, "extra_info": e}) for e in next(rows)["extra_info"]
        ]

    assert len(set(names())) == 2 and names() == names()
