"""Our part of the trainer's checkpoints: what is in one, which are kept, and the store that a resumed run finds."""

import os
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from support.replay_trajectories import stored
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

from arpo_verl.errors import ConfigError, ReplayError
from arpo_verl.plugin.checkpoints import restore_store
from arpo_verl.plugin.resume import describe_tasks, read_record, record_of, resumed_checkpoint
from arpo_verl.plugin.trainer_state import ResumeConfig
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.persistence import Fingerprint, save_store
from arpo_verl.replay.store.screenshots import screenshot_name
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.types import Task

OURS = Fingerprint("tokenizer", "processor", "prompt")
CALLBACK = "arpo_verl.plugin.checkpoints.ReplayCheckpointCallback"


def store_of(*steps):
    store = SuccessStore(8)
    for step in steps:
        store.add(stored(step=step, screenshots=[shot(step)]))
    return store


class Checkpoints:
    """What veRL and the callback leave behind in `default_local_dir`."""

    def __init__(self, folder):
        self.folder = folder
        self.callback = build_checkpoint_callback(
            OmegaConf.create(
                {"trainer": {"checkpoint_callback_class": CALLBACK, "default_local_dir": str(folder), "save_freq": 1}}
            )
        )

    def save(self, step, store=None, enable=True):
        """A checkpoint as the trainer writes it; `store` None: the kill came before the callback."""
        folder = self.folder / f"global_step_{step}"
        (folder / "actor").mkdir(parents=True, exist_ok=True)
        (self.folder / "latest_checkpointed_iteration.txt").write_text(str(step))
        if store is not None:
            replayer = SimpleNamespace(
                store=store, config=ReplayConfig(enable=enable), save=lambda path: save_store(store, path, OURS)
            )
            trainer = SimpleNamespace(replay_buffer=SimpleNamespace(replayer=replayer))
            self.callback.on_save(
                trainer=trainer, global_step=step, checkpoint_dir=str(folder), async_save=False, later_argument=1
            )
        return folder

    def restored(self, seed_from=None, fingerprint=OURS, on_bad_store="fallback", **resume):
        store = SuccessStore(8)
        replay = ReplayConfig(seed_from=seed_from, on_bad_store=on_bad_store)
        restore_store(store, ResumeConfig(str(self.folder), **resume), replay, lambda: fingerprint)
        return [trajectory.step for trajectory in store.trajectories()]


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def test_a_resumed_run_begins_with_the_store_of_the_step_that_it_resumes(checkpoints):
    checkpoints.save(1, store_of(1))
    checkpoints.save(2, store_of(1, 2))
    assert checkpoints.restored() == [1, 2]
    path = str(checkpoints.folder / "global_step_1")
    assert checkpoints.restored(resume_mode="resume_path", resume_from_path=path) == [1]
    assert checkpoints.restored(resume_mode="disable") == []


def test_a_relative_folder_is_taken_from_where_the_trainer_runs(checkpoints, monkeypatch):
    checkpoints.save(3, store_of(3))
    monkeypatch.chdir(checkpoints.folder.parent)
    assert resumed_checkpoint(ResumeConfig("checkpoints")) == checkpoints.folder / "global_step_3"


def test_a_kill_between_the_trainers_save_and_ours_loses_one_interval_and_no_more(checkpoints, caplog):
    checkpoints.save(8, store_of(1, 2))
    checkpoints.save(9, store_of(1, 2, 3))
    checkpoints.save(10)
    assert checkpoints.restored() == [1, 2, 3]
    assert "global_step_10 has no replay store" in caplog.text
    # Never one from the future of the step that is resumed.
    path = str(checkpoints.folder / "global_step_8")
    assert checkpoints.restored(resume_mode="resume_path", resume_from_path=path) == [1, 2]


def test_a_checkpoint_of_a_run_without_replay_gives_an_empty_store_or_the_seed(checkpoints, tmp_path, caplog):
    checkpoints.save(1, store_of(1), enable=False)
    assert checkpoints.restored() == []
    assert "starts empty" in caplog.text
    save_store(store_of(7), tmp_path / "seed", OURS)
    assert checkpoints.restored(seed_from=str(tmp_path / "seed")) == [7]


def test_a_seed_serves_the_beginning_only(checkpoints, tmp_path):
    save_store(store_of(7), tmp_path / "seed", OURS)
    assert checkpoints.restored(seed_from=str(tmp_path / "seed")) == [7]
    checkpoints.save(1, store_of(1))
    assert checkpoints.restored(seed_from=str(tmp_path / "seed")) == [1]


def shot(step):
    return b"screenshot of step %d" % step


def damage(folder, step):
    """The screenshot of the success of this step, in this checkpoint and in those that share the file."""
    path = folder / "replay" / "screenshots" / screenshot_name(shot(step))
    assert path.read_bytes() == shot(step)
    path.write_bytes(b"x")


@pytest.mark.parametrize("part", ["tokenizer", "processor", "prompt"])
def test_a_store_of_another_policy_is_passed_over_or_refused_with_the_reason(checkpoints, part, caplog, tmp_path):
    checkpoints.save(1, store_of(1))
    caplog.set_level("WARNING")
    other = Fingerprint(**{**vars(OURS), part: "another"})
    with pytest.raises(ReplayError, match=f"another {part}"):
        checkpoints.restored(fingerprint=other, on_bad_store="refuse")
    save_store(store_of(7), tmp_path / "seed", other)
    assert checkpoints.restored(fingerprint=other) == []
    assert f"made with another {part}" in caplog.text and "starts empty" in caplog.text
    assert checkpoints.restored(fingerprint=other, seed_from=str(tmp_path / "seed")) == [7]
    assert checkpoints.restored(fingerprint=other, seed_from=str(tmp_path / "seed"), on_bad_store="empty") == []
    # Back to the policy that it is of: nothing was removed.
    assert checkpoints.restored() == [1]


def test_one_damaged_screenshot_costs_the_successes_that_show_it(checkpoints, caplog):
    store = store_of(1, 2)
    checkpoints.save(8, store)
    store.add(stored(step=3, screenshots=[shot(3)]))
    folder = checkpoints.save(16, store)
    damage(folder, 3)
    with pytest.raises(ReplayError, match="is damaged"):
        checkpoints.restored(on_bad_store="refuse")
    assert checkpoints.restored(on_bad_store="empty") == []
    caplog.clear(), caplog.set_level("INFO")
    assert checkpoints.restored() == [1, 2]
    assert "left out 1 of the 3 successes" in caplog.text and f"from {folder / 'replay'}" in caplog.text
    # Shared by hard links, so in both checkpoints: no earlier one would be better.
    damage(folder, 1)
    assert checkpoints.restored() == [2]


def test_an_unreadable_store_gives_way_to_the_newest_that_can_be_read(checkpoints, caplog):
    caplog.set_level("INFO")
    first = checkpoints.save(8, store_of(1))
    second = checkpoints.save(16, store_of(1, 2))
    third = checkpoints.save(24, store_of(1, 2, 3))
    (third / "replay" / "store.json").write_text("{}")
    next((second / "replay").glob("trajectories-*")).write_text("")
    assert checkpoints.restored() == [1]
    assert "store.json must be" in caplog.text and "is damaged" in caplog.text
    assert f"starts with 1 successes of 1 tasks, from {first / 'replay'}" in caplog.text
    with pytest.raises(ReplayError, match="store.json must be"):
        checkpoints.restored(on_bad_store="refuse")
    damage(first, 1)
    caplog.clear()
    assert checkpoints.restored() == [] and "starts empty" in caplog.text


def test_damaged_seeds_of_a_run_that_begins_are_refused(checkpoints, tmp_path):
    save_store(store_of(7), tmp_path / "seed", OURS)
    (tmp_path / "seed" / "store.json").write_text("{}")
    with pytest.raises(ReplayError, match="store.json must be"):
        checkpoints.restored(seed_from=str(tmp_path / "seed"))


def test_a_checkpoint_does_not_take_over_the_damage_of_the_one_before(checkpoints):
    store = store_of(1, 2)
    first = checkpoints.save(8, store)
    damage(first, 1)
    second = checkpoints.save(16, store)
    assert checkpoints.restored(on_bad_store="refuse") == [1, 2]
    names = [screenshot_name(shot(step)) for step in (1, 2)]
    links = [(second / "replay" / "screenshots" / name).stat().st_nlink for name in names]
    assert links == [1, 2], "the whole one is shared, the damaged one written anew"
    # A step that is saved again, after a resume from before it, mends its own folder too.
    damage(second, 2)
    checkpoints.save(16, store)
    assert checkpoints.restored(on_bad_store="refuse") == [1, 2]


def test_stores_leave_with_the_checkpoints_that_the_trainer_drops(checkpoints):
    first = checkpoints.save(1, store_of(1))
    checkpoints.save(2, store_of(1, 2))
    (first / "actor").rmdir()  # as `trainer.max_actor_ckpt_to_keep` does it
    checkpoints.save(3, store_of(1, 2, 3))
    assert sorted(path.parent.name for path in checkpoints.folder.glob("*/replay")) == [
        "global_step_2",
        "global_step_3",
    ]


def test_queues_leave_with_them_whoever_samples_and_so_do_halves_that_a_kill_left(checkpoints):
    folders = [checkpoints.save(step) for step in (1, 2, 3)]
    for folder in folders:
        for name in ("transfer_queue", "transfer_queue.tmp", "transfer_queue.old"):
            (folder / name).mkdir()
            (folder / name / "controller.pkl").write_bytes(b"large")
    (folders[0] / "actor").rmdir()  # as `trainer.max_actor_ckpt_to_keep` does it
    checkpoints.callback.on_save(
        trainer=SimpleNamespace(replay_buffer=object()), global_step=3, checkpoint_dir=str(folders[2])
    )
    left = {(path.parent.name, path.name) for path in checkpoints.folder.glob("*/transfer_queue*")}
    assert left == {
        *(("global_step_2", name) for name in ("transfer_queue", "transfer_queue.old")),
        *(("global_step_3", f"transfer_queue{ending}") for ending in ("", ".tmp", ".old")),
    }
    assert not list(checkpoints.folder.glob("*/replay")), "another sampler's store is none of ours"


# --- Over several starts ---------------------------------------------------------------------------------------------


class Start:
    """One start of a trainer that keeps `most` checkpoints: veRL's own manager of the weights, and our callback."""

    def __init__(self, folder, most):
        self.folder, self.most = folder, most
        self.manager = object.__new__(BaseCheckpointManager)  # its constructor asks for a process group
        self.manager.previous_saved_paths = []
        trainer = {"checkpoint_callback_class": CALLBACK, "default_local_dir": str(folder), "save_freq": 1}
        trainer |= {"max_actor_ckpt_to_keep": most, "max_critic_ckpt_to_keep": None}
        self.callback = build_checkpoint_callback(OmegaConf.create({"trainer": trainer}))

    def save(self, step, with_callback=True):
        actor = self.folder / f"global_step_{step}" / "actor"
        self.manager.ensure_checkpoint_capacity(self.most)
        actor.mkdir(parents=True)
        self.manager.register_checkpoint(str(actor), self.most)
        if with_callback:
            trainer = SimpleNamespace(replay_buffer=object())
            self.callback.on_save(trainer=trainer, global_step=step, checkpoint_dir=str(actor.parent))


def with_weights(folder):
    return sorted(int(actor.parent.name.removeprefix("global_step_")) for actor in folder.glob("global_step_*/actor"))


@pytest.mark.parametrize(("most", "kept"), [(1, [4]), (2, [3, 4]), (3, [2, 3, 4]), (None, [1, 2, 3, 4])])
def test_as_many_checkpoints_are_kept_as_the_recipe_says_whichever_start_saved_them(tmp_path, most, kept):
    for steps in ((1, 2), (3,), (4,)):
        start = Start(tmp_path, most)
        for step in steps:
            start.save(step)
    assert with_weights(tmp_path) == kept


def test_verl_by_itself_forgets_what_an_earlier_start_saved(tmp_path):
    for step in (1, 2, 3):
        Start(tmp_path, 1).save(step, with_callback=False)
    assert with_weights(tmp_path) == [1, 2, 3]


def test_checkpoints_of_later_steps_stay_where_a_run_goes_on_from_an_earlier_one(tmp_path):
    for step in (2, 4, 6):
        Start(tmp_path, None).save(step)
    Start(tmp_path, 1).save(3)
    assert with_weights(tmp_path) == [3, 4, 6]


# --- What a run was made of ------------------------------------------------------------------------------------------


def test_a_checkpoint_says_what_its_run_was_made_of(tmp_path):
    recipe = OmegaConf.create(
        {
            "trainer": {"checkpoint_callback_class": CALLBACK, "default_local_dir": str(tmp_path), "save_freq": 1},
            "data": {"seed": 1, "train_batch_size": 2},
            "environment": {"num_desktops": 4, "password": "never written"},
        }
    )
    callback = build_checkpoint_callback(recipe)
    recipe.data.seed = 7  # as veRL writes into the recipe of a run that has begun
    tasks = [Task(task_id, f"Do {task_id}.", {}) for task_id in "abb"]
    checkpoint = tmp_path / "global_step_1"
    checkpoint.mkdir()
    trainer = SimpleNamespace(replay_buffer=object(), train_dataset=SimpleNamespace(tasks=tasks))
    callback.on_save(trainer=trainer, global_step=1, checkpoint_dir=str(checkpoint))
    record = read_record(checkpoint)
    assert record.tasks == ("a", "b", "b") and record.contents.keys() == {"a", "b"}
    assert record.task_changes(record_of({}, tasks)) == ""
    assert record.task_changes(record_of({}, [Task("a", "Do it.", {})])).endswith("evaluator of a")
    assert (record.settings["data.seed"], record.settings["environment.num_desktops"]) == ("1", "4")
    assert b"never written" not in (checkpoint / "resume.json").read_bytes()


HOSTILE = {
    "no JSON": b"{",
    "a list": b"[]",
    "another format": b'{"format": "arpo-verl replay store", "version": 1, "tasks": [], "settings": {}}',
    "another version": b'{"format": "arpo-verl resume", "version": 2, "tasks": [], "settings": {}}',
    "tasks that are none": b'{"format": "arpo-verl resume", "version": 1, "tasks": {"a": 1}, "settings": {}}',
    "numbers": b'{"format": "arpo-verl resume", "version": 1, "tasks": ["a"], "settings": {"data.seed": 1}}',
    "contents": b'{"format": "arpo-verl resume", "version": 1, "tasks": [], "settings": {}, "contents": {"a": 1}}',
    "deep": b"[" * 5000 + b"]" * 5000,
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_record_of_somebody_elses_is_refused_with_what_to_do(tmp_path, content):
    (tmp_path / "resume.json").write_bytes(content)
    with pytest.raises(ConfigError, match="or remove this file"):
        read_record(tmp_path)


def test_a_record_is_no_link_and_no_pipe(tmp_path):
    (tmp_path / "resume.json").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="is a link"):
        read_record(tmp_path)
    (tmp_path / "resume.json").unlink()
    os.mkfifo(tmp_path / "resume.json")
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_record(tmp_path)


def test_nothing_of_a_record_reaches_the_terminal_as_it_stands():
    tasks = [f"\x1b]0;{number}\x07\n" for number in range(9)]
    words = describe_tasks(tasks, ["a"])
    assert words.isprintable() and "and 6 more" in words and len(words) < 1000
