"""The stock trainer in which another plugin undoes a change that ours makes to veRL: it ends, and says so."""

import pytest
from support import loading
from trainer_run import TASKS

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]


@pytest.mark.parametrize(
    "undone",
    [
        "verl.trainer.ppo.v1.trainer_base:compute_rollout_correction_and_add_to_batch",
        "verl.workers.engine_workers:maybe_fix_3d_position_ids",
    ],
    ids=["trainer", "workers"],
)
def test_a_run_in_which_a_patch_is_lost_ends_with_what_is_lost(workplace, undone):
    env = loading("undo_patch", ARPO_VERL_UNDONE=undone)
    overrides = ["data.train_batch_size=1", "actor_rollout_ref.rollout.n=2"]
    overrides += ["actor_rollout_ref.actor.ppo_mini_batch_size=1", "gui_agent.max_steps=1"]
    trainer = workplace.start(undone.rpartition(":")[2], 1, *overrides, groups=len(TASKS), env=env)
    with pytest.raises(RuntimeError, match="the trainer ended badly"):
        trainer.wait(timeout_s=1800.0)
    assert f"PatchLostError: This process runs {undone.replace(':', '.')} without arpo_verl's patch" in trainer.output()
