"""Resumes with something changed. Each goes on and says what changed, or is refused with words that say what to do.

The checkpoint is one of step 4, the end of the second epoch: eight tasks, four a step. What goes on also draws its next
epoch, by the trainer's own loader.
"""

import importlib.util
import json
import re
import shutil

import pytest
import torch
from omegaconf import OmegaConf
from support.checkpoints import write_shards
from support.composed import compose_recipe
from support.policies.build import build_policy

pytest.importorskip("verl")

from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler  # noqa: E402
from verl.trainer.ppo.v1 import trainer_base  # noqa: E402
from verl.utils.dataset.rl_dataset import collate_fn  # noqa: E402

from arpo_verl.config import Problems  # noqa: E402
from arpo_verl.models.official_words import PACKAGE  # noqa: E402
from arpo_verl.plugin.dataset import training_rows  # noqa: E402
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.recipe.resuming import check_resume, describe_resume  # noqa: E402
from arpo_verl.plugin.resume import RECORD_FILE, ResumeRecord, record_of, settings_of, write_record  # noqa: E402
from arpo_verl.plugin.trainer_state import TrainerState  # noqa: E402
from arpo_verl.records.layout import LATEST_CHECKPOINT  # noqa: E402
from arpo_verl.replay.fingerprint import model_fingerprint  # noqa: E402
from arpo_verl.replay.store.persistence import save_store  # noqa: E402
from arpo_verl.replay.store.success_store import SuccessStore  # noqa: E402
from arpo_verl.tasks.loader import shipped_file  # noqa: E402

NAMES = ("dialog-confirm-no", "dialog-confirm-yes", "dialog-follow-left", "dialog-follow-right")
NAMES += ("editor-line-numbers", "editor-replace-text", "editor-write-hello", "entry-type-name")
OTHERS = ("files-delete-old", "files-new-folder", "files-rename-folder", "form-new-contact")
A, R, M = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "model"))
ANEW = "the order of tasks begins anew"


def tasks(*names):
    return f"data.train_files=[{','.join(str(shipped_file(name)) for name in names)}]"


BASE = (tasks(*NAMES), "data.train_batch_size=4", f"{A}.ppo_mini_batch_size=4", "trainer.total_epochs=5")
BASE += ("data.seed=1", "+replay.on_bad_store=fallback")
COLOCATE = ("trainer.v1.trainer_mode=colocate_async",)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The policy, and a run's checkpoints of the steps 2 and 4."""
    folder = tmp_path_factory.mktemp("made")
    config = recipe(f"{M}.path={build_policy(folder / 'policy')}")
    rows = trainers_rows(config)
    loader = trainers_loader(config, rows)
    for step in (2, 4):
        list(loader)  # an epoch
        write_checkpoint(folder / "checkpoints" / f"global_step_{step}", config, rows, loader.state_dict())
    return folder


def write_checkpoint(checkpoint, config, rows, data_state):
    """As trainer and callback write it."""
    write_shards(checkpoint)
    (checkpoint / "actor" / "huggingface").mkdir()
    shutil.copy(f"{config.actor_rollout_ref.model.path}/config.json", checkpoint / "actor" / "huggingface")
    torch.save(data_state, checkpoint / "data.pt")
    (checkpoint.parent / LATEST_CHECKPOINT).write_text(checkpoint.name.removeprefix("global_step_"))
    write_record(checkpoint, record_of(settings_of(recipe()), rows.tasks))
    state = TrainerState(config)
    inputs = ModelInputs.load(state.policy, {})
    fingerprint = model_fingerprint(inputs.tokenizer, inputs.processor, {}, state.agent)
    save_store(SuccessStore(8), checkpoint / "replay", fingerprint)


def recipe(*overrides, resolve=True):
    """Of a run in the working folder. With `resolve` as the trainer's process has it, else as the check gets it."""
    places = (f"{M}.path=policy", "trainer.default_local_dir=checkpoints")
    config = compose_recipe("embedded", *places, *BASE, *overrides)
    if resolve:
        OmegaConf.resolve(config)
    return config


def trainers_rows(config):
    return create_rl_dataset(config.data.train_files, config.data, None, None, True, config.data.train_max_samples)


def trainers_loader(config, rows):
    """As `PPOTrainer._init_dataloader` makes it."""
    return trainer_base.StatefulDataLoader(
        dataset=rows,
        batch_size=config.data.train_batch_size if config.trainer.v1.trainer_mode == "sync" else 1,
        num_workers=config.data["dataloader_num_workers"],
        drop_last=True,
        collate_fn=collate_fn,
        sampler=create_rl_sampler(config.data, rows),
    )


def played_next(config, checkpoint):
    """The tasks of the resumed run's next epoch, fetched as `PPOTrainer._fetch_one_gen_batch` does it."""
    rows = trainers_rows(config)
    loader = trainers_loader(config, rows)
    if (checkpoint / "data.pt").exists():
        loader.load_state_dict(torch.load(checkpoint / "data.pt", weights_only=False))
    batches = []
    try:
        iterator = iter(loader)
        batches.append(next(iterator))
    except StopIteration:
        iterator = iter(loader)
        batches.append(next(iterator))
    batches += list(iterator)
    return [info["task_id"] for batch in batches for info in batch["extra_info"]]


def checkpoint_of(folder):
    return folder / "checkpoints" / "global_step_4"


def cut_off(name):
    def cut(folder):
        file = checkpoint_of(folder) / name
        file.write_bytes(file.read_bytes()[:-10])

    return cut


def remove(name):
    return lambda folder: (checkpoint_of(folder) / name).unlink()


def write(name, text):
    def write_text(folder):
        file = folder / "checkpoints" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    return write_text


def change_model(**values):
    """The recipe names a model of another shape or family."""

    def change(folder):
        file = folder / "policy" / "config.json"
        config = json.loads(file.read_text())
        for part in (config, config.get("text_config", {})):
            part.update({name: value for name, value in values.items() if name in part})
        file.write_text(json.dumps(config))

    return change


def move_model(folder):
    (folder / "policy").rename(folder / "moved")


def nothing(folder):
    pass


# What changed in the recipe, what changed on the disk, and what the run's first lines say.
def rewrite_contents(folder, change):
    file = checkpoint_of(folder) / RECORD_FILE
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "contents": change(values["contents"])}))


GOES_ON = {
    "nothing": ((), nothing, ["after step 4, from", "nothing of the recipe has changed since"]),
    "a task fewer": (
        (tasks(*NAMES[:-1]),),
        nothing,
        [f"7 rows of tasks instead of 8, without entry-type-name: {ANEW}"],
    ),
    "a task more": (
        (tasks(*NAMES, OTHERS[0]),),
        nothing,
        [f"9 rows of tasks instead of 8, with files-delete-old, not there before: {ANEW}"],
    ),
    "the tasks in another order": (
        (tasks(*reversed(NAMES)),),
        nothing,
        [f"the same tasks in another order: {ANEW}"],
    ),
    "another suite": (
        (tasks(*OTHERS),),
        nothing,
        ["4 rows of tasks instead of 8", "dialog-follow-left and 5 more", "files-rename-folder and 1 more", ANEW],
    ),
    "each task twice": (("+data.tasks.repeat=2",), nothing, [f"16 rows of tasks instead of 8: {ANEW}"]),
    "tasks left out": (("data.train_max_samples=6",), nothing, ["6 rows of tasks instead of 8, without", ANEW]),
    "a task of another content under its id": (
        (),
        lambda folder: rewrite_contents(folder, lambda contents: contents | {NAMES[0]: "0", "gone": "1"}),
        [f"another instruction, set-up or evaluator of {NAMES[0]}: what was solved of these tasks before"],
    ),
    "a record of before contents were recorded": (
        (),
        lambda folder: rewrite_contents(folder, lambda contents: {}),
        ["nothing of the recipe has changed since"],
    ),
    "frontier sampling": (
        ("data.tasks.sampling=frontier",),
        nothing,
        ['data.tasks.sampling "uniform" -> "frontier"'],
    ),
    "another batch size": (
        ("data.train_batch_size=2", f"{A}.ppo_mini_batch_size=2"),
        nothing,
        ["data.train_batch_size 4 -> 2: an epoch has another number of steps", f"{A}.ppo_mini_batch_size 4 -> 2"],
    ),
    "another size of groups": (
        (f"{R}.n=2",),
        nothing,
        [f"{R}.n 4 -> 2: groups that were in flight keep their size"],
    ),
    "another seed": (("data.seed=2",), nothing, [f"data.seed 1 -> 2: {ANEW}"]),
    "no shuffling": (("data.shuffle=false",), nothing, [f"data.shuffle true -> false: {ANEW}"]),
    "a loader with workers": (
        ("data.dataloader_num_workers=1",),
        nothing,
        [f"data.dataloader_num_workers 0 -> 1: {ANEW}"],
    ),
    "more epochs": (("trainer.total_epochs=9",), nothing, ["trainer.total_epochs 5 -> 9: the run ends at another"]),
    "as many epochs as are done": (("trainer.total_epochs=2",), nothing, ["nothing is left to train"]),
    "the model at another place": (
        (f"{M}.path=moved",),
        move_model,
        ["the weights still come from the checkpoint; tokenizer, processor and configuration come from here"],
    ),
    "another model family": (
        ("gui_agent.model_family=qwen25_vl",),
        nothing,
        ['gui_agent.model_family "small" -> "qwen25_vl"', "made with another prompt"],
    ),
    "another context": (
        ("gui_agent.context=window",),
        nothing,
        ['gui_agent.context "full" -> "window": the policy reads other conversations', "made with another prompt"],
    ),
    "another window": (
        ("gui_agent.max_screenshots=3",),
        nothing,
        ["gui_agent.max_screenshots null -> 3: the policy reads other conversations"],
    ),
    "another learning rate with a fresh optimizer": (
        (f"{A}.optim.lr=1e-3", f"{A}.checkpoint.load_contents=[model]"),
        nothing,
        [f"{A}.optim.lr 0.0002 -> 0.001"],
    ),
    "an asynchronous mode": (
        COLOCATE,
        nothing,
        ['trainer.v1.trainer_mode "sync" -> "colocate_async": `sync` drops unfinished rollouts'],
    ),
    "another capacity of the store": (
        ("replay.capacity_per_task=2",),
        nothing,
        ["replay.capacity_per_task 8 -> 2"],
    ),
    "without replay": (("replay.enable=false",), nothing, ["replay.enable true -> false"]),
    "more desktops": (("+environment.num_desktops=7",), nothing, ["environment.num_desktops null -> 7"]),
    "no data.pt": ((), remove("data.pt"), [f"it has no data.pt: {ANEW}"]),
    "a checkpoint of an older version": ((), remove(RECORD_FILE), [f"it does not record its tasks .*: {ANEW}"]),
}

# The same, with words of the refusal.
REFUSED = {
    "fewer epochs than are done": (
        ("trainer.total_epochs=1",),
        nothing,
        ["end it after step 2; raise trainer.total_epochs, or begin a new run with its weights"],
    ),
    "fewer tasks than make the steps that are done": (
        (tasks(*NAMES[:7]), "trainer.total_epochs=3"),
        nothing,
        ["end it after step 3; raise trainer.total_epochs"],
    ),
    "a model of another shape": (
        (),
        change_model(num_hidden_layers=7),
        ["a model of the checkpoint's shape", "num_layers .* instead of 7", "name the model that it was trained from"],
    ),
    "a model of another family": (
        (),
        change_model(model_type="qwen3_vl"),
        ["family qwen2_5_vl instead of qwen3_vl"],
    ),
    "another learning rate": (
        (f"{A}.optim.lr=1e-3",),
        nothing,
        [f"{A}.optim.lr must be 0.0002 to go on", "got 0.001: veRL would keep the checkpoint's; set it back"],
    ),
    "another optimizer": ((f"{A}.optim.optimizer=Adam",), nothing, [f'{A}.optim.optimizer must be "AdamW"']),
    "an adapter": ((f"{M}.lora_rank=8",), nothing, [f"{M}.lora_rank must be 0 to go on", "do not fit into such a"]),
    "more GPUs": (
        ("trainer.n_gpus_per_node=2",),
        nothing,
        [r"n_gpus_per_node must be 1, the processes that wrote .*, got 2; set it back, or begin a new run with its"],
    ),
    "another FSDP": ((f"{A}.strategy=fsdp",), nothing, [f"{A}.strategy must be fsdp2, which wrote .* got fsdp; set"]),
    "other successes with refuse": (
        ("gui_agent.context=window", "replay.on_bad_store=refuse"),
        nothing,
        ["made with another prompt"],
    ),
    "weights that are cut off": (
        (),
        cut_off("actor/optim_world_size_1_rank_0.pt"),
        ["missing or cut off: actor/optim_world_size_1_rank_0.pt; copy it again, or take an earlier one: .*step_2$"],
    ),
    "no weights": ((), remove("actor/model_world_size_1_rank_0.pt"), ["cut off: actor/model_world_size_1_rank_0.pt"]),
    "a position that is cut off": ((), cut_off("data.pt"), [r"data.pt \(or remove it: the order .* begins anew\)"]),
    "a queue without its state": (
        COLOCATE,
        write("global_step_4/transfer_queue/metadata.json", "{}"),
        [r"transfer_queue/controller_state.pkl \(or remove transfer_queue"],
    ),
    "a damaged record": (
        (),
        write(f"global_step_4/{RECORD_FILE}", '{"format": "arpo-verl resume", "version": 1, "tasks": [3]}'),
        ["resume.json must be what arpo-verl writes .* malformed tasks or settings; copy .* or remove this file"],
    ),
    "a note that is no number": ((), write(LATEST_CHECKPOINT, "four"), ["must contain the step of the newest"]),
    "a note of what is gone": (
        (),
        write(LATEST_CHECKPOINT, "6"),
        [r"must name an existing checkpoint, got 6; write the step .* \(one of 2, 4\), or set .*=disable"],
    ),
}


@pytest.fixture
def resumed(made, tmp_path, monkeypatch):
    """Change a run; what the check finds, the recipe as it gets it, and the run's folder."""

    def resumed(overrides, change):
        folder = made
        if change is not nothing:
            folder = shutil.copytree(made, tmp_path / "changed")
            change(folder)
        monkeypatch.chdir(folder)
        config = recipe(*overrides, resolve=False)
        found = Problems()
        with found.gather():
            check_resume(config)
        return [str(error) for error in found.errors], config, folder

    return resumed


@pytest.mark.parametrize("row", GOES_ON)
def test_a_resume_goes_on_and_says_what_changed(row, resumed, match):
    overrides, change, says = GOES_ON[row]
    if row == "another prompt" and importlib.util.find_spec(PACKAGE) is None:
        pytest.skip(f"needs {PACKAGE}, whose words it uses")
    problems, config, folder = resumed(overrides, change)
    assert problems == []
    lines = "\n".join(describe_resume(config))
    for words in says:
        match(words, lines)
    played = played_next(config, checkpoint_of(folder))
    size = config.data.train_batch_size if config.trainer.v1.trainer_mode == "sync" else 1
    rows = [task.task_id for task in training_rows(config.data)]
    assert len(played) == len(rows) // size * size and set(played) <= set(rows)
    if config.data.tasks.sampling == "uniform":
        assert all(played.count(task) <= rows.count(task) for task in rows)


@pytest.mark.parametrize("row", REFUSED)
def test_a_resume_that_would_fail_or_do_something_else_is_refused(row, resumed, match):
    overrides, change, says = REFUSED[row]
    problems, *_ = resumed(overrides, change)
    assert len(problems) == 1
    for words in says:
        match(words, problems[0])


def test_nothing_that_a_checkpoint_says_reaches_the_terminal_as_it_stands(resumed):
    def write_hostile(folder):
        options = {f"{M}.lora.\x1b[2J": "\x1b]0;x\x07", "data.seed": "9" * 10**6}
        write_record(checkpoint_of(folder), ResumeRecord(("\x1b[31m" * 1000,), options))

    problems, config, _ = resumed((), write_hostile)
    assert problems == []
    lines = describe_resume(config)
    assert all(line.isprintable() and len(line) < 1000 for line in lines) and len(lines) == 22
    assert lines[-1].endswith(" more changes")


def test_a_file_that_claims_a_thousand_million_processes_hangs_nothing(resumed):
    def claim(folder):
        (checkpoint_of(folder) / "actor" / "model_world_size_1_rank_0.pt").rename(
            checkpoint_of(folder) / "actor" / "model_world_size_999999999_rank_0.pt"
        )

    problems, *_ = resumed((), claim)
    assert any("n_gpus_per_node must be 999999999" in problem for problem in problems)
    assert any("missing or cut off: actor/model_world_size_999999999_rank_1.pt" in problem for problem in problems)


def test_a_file_of_a_checkpoint_s_name_is_no_checkpoint(resumed):
    """veRL would fail on it in its workers."""

    def note_file(folder):
        (folder / "checkpoints" / "global_step_7").touch()
        (folder / "checkpoints" / LATEST_CHECKPOINT).write_text("7")

    problems, *_ = resumed((), note_file)
    assert len(problems) == 1 and "must name an existing checkpoint, got 7" in problems[0]


@pytest.fixture
def match():
    """Find words in a text; those with `.*`, a backslash or `$` in them are a pattern."""

    def find(words, text):
        is_pattern = any(mark in words for mark in (".*", "\\", "$"))
        assert re.search(words if is_pattern else re.escape(words), text, re.M), text

    return find
