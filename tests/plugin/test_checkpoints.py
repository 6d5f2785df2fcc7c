"""The store in the trainer's checkpoints: found where the trainer resumes, and only there."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from support.replay_trajectories import stored
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback

from arpo_verl.errors import ReplayError
from arpo_verl.plugin.checkpoints import ResumeConfig, restore_store, resumed_checkpoint
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.persistence import Fingerprint, save_store
from arpo_verl.replay.store.success_store import SuccessStore

OURS = Fingerprint("tokenizer", "processor", "prompt")
CALLBACK = "arpo_verl.plugin.checkpoints.ReplayCheckpointCallback"


def store_of(*steps):
    store = SuccessStore(8, 10**9)
    for step in steps:
        store.add(stored(step=step))
    return store


class Checkpoints:
    """What veRL and the callback leave behind in `default_local_dir`."""

    def __init__(self, folder):
        self.folder = folder
        self.callback = build_checkpoint_callback(
            OmegaConf.create({"trainer": {"checkpoint_callback_class": CALLBACK}})
        )

    def save(self, step, store=None, enable=True):
        """A checkpoint as the trainer writes it; `store` None: the kill came before the callback."""
        folder = self.folder / f"global_step_{step}"
        (folder / "actor").mkdir(parents=True)
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

    def restored(self, seed_from=None, fingerprint=OURS, **resume):
        store = SuccessStore(8, 10**9)
        restore_store(store, ResumeConfig(str(self.folder), **resume), seed_from, lambda: fingerprint)
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
    assert "begins empty" in caplog.text
    save_store(store_of(7), tmp_path / "seed", OURS)
    assert checkpoints.restored(seed_from=str(tmp_path / "seed")) == [7]


def test_a_seed_serves_the_beginning_only(checkpoints, tmp_path):
    save_store(store_of(7), tmp_path / "seed", OURS)
    assert checkpoints.restored(seed_from=str(tmp_path / "seed")) == [7]
    checkpoints.save(1, store_of(1))
    assert checkpoints.restored(seed_from=str(tmp_path / "seed")) == [1]


@pytest.mark.parametrize("part", ["tokenizer", "processor", "prompt"])
def test_a_store_of_another_policy_is_refused_with_the_reason(checkpoints, part):
    checkpoints.save(1, store_of(1))
    other = Fingerprint(**{**vars(OURS), part: "another"})
    with pytest.raises(ReplayError, match=f"another {part}"):
        checkpoints.restored(fingerprint=other)


def test_stores_leave_with_the_checkpoints_that_the_trainer_drops(checkpoints):
    first = checkpoints.save(1, store_of(1))
    checkpoints.save(2, store_of(1, 2))
    (first / "actor").rmdir()  # as `trainer.max_actor_ckpt_to_keep` does it
    checkpoints.save(3, store_of(1, 2, 3))
    assert sorted(path.parent.name for path in checkpoints.folder.glob("*/replay")) == [
        "global_step_2",
        "global_step_3",
    ]


def test_another_sampler_is_none_of_the_callbacks_business(checkpoints):
    checkpoints.callback.on_save(
        trainer=SimpleNamespace(replay_buffer=object()), global_step=1, checkpoint_dir=str(checkpoints.folder)
    )
    assert not checkpoints.folder.exists()
