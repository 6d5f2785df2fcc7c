"""Resumes with something changed. Each goes on and says what changed, or is refused with words that say what to do.

The checkpoint is one of step 4, the end of the second epoch: eight tasks, four a step. What goes on also draws its next
epoch, by the trainer's own loader.
"""

import json
import re
import shutil

import pytest
import torch
from omegaconf import OmegaConf
from support.composed import compose_recipe
from support.policies.build import build_policy

pytest.importorskip("verl")

from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler  # noqa: E402
from verl.trainer.ppo.v1 import trainer_base  # noqa: E402
from verl.utils.dataset.rl_dataset import collate_fn  # noqa: E402

from arpo_verl.lib.config import Problems  # noqa: E402
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
    checkpoint.mkdir(parents=True)
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


def remove(name):
    return lambda folder: (checkpoint_of(folder) / name).unlink()


def write(name, text):
    def write_text(folder):
        file = folder / "checkpoints" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    return write_text


def move_model(folder):
    (folder / "policy").rename(folder / "moved")


def nothing(folder):
    pass


def rewrite_contents(change):
    def rewrite(folder):
        file = checkpoint_of(folder) / RECORD_FILE
        values = json.loads(file.read_text())
        file.write_text(json.dumps({**values, "contents": change(values["contents"])}))

    return rewrite


# What changed in the recipe, what changed on the disk, and what the run's first lines say.
GOES_ON = {
    "nothing": ((), nothing, ["after step 4, from", "nothing of the recipe has changed since"]),
    "a task fewer": ((tasks(*NAMES[:-1]),), nothing, [f"7 rows of tasks instead of 8, without {NAMES[-1]}: {ANEW}"]),
    "another order": ((tasks(*reversed(NAMES)),), nothing, [f"the same tasks in another order: {ANEW}"]),
    "another suite": (
        (tasks(*OTHERS),),
        nothing,
        ["4 rows of tasks instead of 8", "dialog-follow-left and 5 more", "files-rename-folder and 1 more", ANEW],
    ),
    "each task twice": (("+data.tasks.repeat=2",), nothing, [f"16 rows of tasks instead of 8: {ANEW}"]),
    "a task of another content under its id": (
        (),
        rewrite_contents(lambda contents: contents | {NAMES[0]: "0", "gone": "1"}),
        [f"another instruction, set-up or evaluator of {NAMES[0]}: what was solved of these tasks before"],
    ),
    "a record of before contents were recorded": (
        (),
        rewrite_contents(lambda contents: {}),
        ["nothing of the recipe has changed since"],
    ),
    "frontier sampling": (("data.tasks.sampling=frontier",), nothing, ['data.tasks.sampling "uniform" -> "frontier"']),
    "another seed": (("data.seed=2",), nothing, ["data.seed 1 -> 2", f"data.seed changed: {ANEW}"]),
    "a loader with workers": (("data.dataloader_num_workers=1",), nothing, [f"data.dataloader_num_workers .*: {ANEW}"]),
    "as many epochs as are done": (("trainer.total_epochs=2",), nothing, ["nothing is left to train"]),
    "options, a reference to one, and a learning rate": (
        (f"{A}.optim.lr=1e-3", "data.train_batch_size=2", f"{A}.ppo_mini_batch_size=2", f"{R}.n=2"),
        nothing,
        [f"{A}.optim.lr 0.0002 -> 0.001", "data.train_batch_size 4 -> 2", f"{R}.n 4 -> 2", "stay the checkpoint's"],
    ),
    "another reward function": (("reward.custom_reward_function.name=mine",), nothing, ['_function.name .* -> "mine"']),
    "the model at another place": ((f"{M}.path=moved",), move_model, [f'{M}.path "policy" -> "moved"']),
    "an asynchronous mode": (COLOCATE, nothing, ['trainer.v1.trainer_mode "sync" -> "colocate_async"']),
    "no data.pt": ((), remove("data.pt"), [f"it has no data.pt: {ANEW}"]),
    "a checkpoint of an older version": ((), remove(RECORD_FILE), [f"it does not record its tasks .*: {ANEW}"]),
}

# The same, with words of the refusal.
REFUSED = {
    "fewer tasks than make the steps that are done": (
        (tasks(*NAMES[:7]), "trainer.total_epochs=3"),
        nothing,
        ["end it after step 3; raise trainer.total_epochs, or begin a new run with its weights"],
    ),
    "a damaged record": (
        (),
        write(f"global_step_4/{RECORD_FILE}", '{"format": "arpo-verl resume", "version": 1, "tasks": [3]}'),
        ["resume.json must be what arpo-verl writes .*tasks.*; copy .* or remove this file"],
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
    assert all(line.isprintable() and len(line) < 1000 for line in lines) and len(lines) == 23
    assert lines[-2].endswith(" more changes")


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
