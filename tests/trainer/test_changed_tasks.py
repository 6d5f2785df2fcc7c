"""A run whose list of tasks is shorter when it goes on, from a checkpoint at an epoch's end."""

import json

import pytest
from trainer_run import ROOT, TrainerRun

from arpo_verl.records.run import open_run

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]
TASKS = [f"families:training:{number}:1" for number in (22, 39, 70, 87)]
GONE = "training-000087-follow"
OPTIONS = ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=2"]
OPTIONS += ["trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=1"]
OPTIONS += ["trainer.val_before_train=false", "trainer.test_freq=-1"]


def test_it_trains_on_the_tasks_that_are_left_and_keeps_as_many_checkpoints_as_before(shipped, tmp_path):
    def train(tasks, steps):
        length = [f"trainer.total_training_steps={steps}", f"trainer.total_epochs={steps}"]
        files = [f"actor_rollout_ref.model.path={shipped}", f"data.train_files=[{','.join(tasks)}]"]
        run = TrainerRun(tmp_path / "run", *OPTIONS, *length, *files, recipe=ROOT / "recipes" / "demo.yaml")
        run.wait(timeout_s=3600)
        return run

    train(TASKS, steps=2)  # an epoch
    resumed = train(TASKS[:-1], steps=4)

    checkpoints = resumed.run_dir / "checkpoints"
    lines = resumed.output().splitlines()
    begin = lines.index(f"goes on      after step 2, from {checkpoints / 'global_step_2'}") + 1
    end = next(number for number in range(begin, len(lines)) if not lines[number].startswith("  "))
    assert lines[begin] == f"  3 rows of tasks instead of 4, without {GONE}: the order of tasks begins anew"
    # What the trainer wrote of the same recipe is what the check reads of it: nothing else has changed.
    assert lines[end - 1].startswith("  weights and optimizer, with its learning rate, stay the checkpoint's")
    changed = [line.split()[0] for line in lines[begin + 1 : end - 1]]
    assert changed == ["data.train_files", "trainer.total_epochs", "trainer.total_training_steps"]
    assert [json.loads(line)["step"] for line in (resumed.run_dir / "metrics.jsonl").open()] == [3, 4]
    groups = [(group.step, group.task_id) for group in open_run(resumed.run_dir).groups()]
    for epoch in ((1, 2), (3,), (4,)):
        played = [task_id for step, task_id in groups if step in epoch]
        assert len(set(played)) == len(played) == 2 * len(epoch)
        assert GONE not in played or epoch == (1, 2)
    assert [actor.parent.name for actor in checkpoints.glob("global_step_*/actor")] == ["global_step_4"]
