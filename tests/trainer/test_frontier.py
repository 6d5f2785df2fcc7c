"""Frontier sampling in the stock trainer, in each of its modes: killed with `kill -9`, gone on with, each group counted
once."""

import pytest
import torch
from trainer_run import GROUPS, MODES, TASKS, Workplace, read_steps

from arpo_verl.records.run import open_run
from arpo_verl.tasks.frontier import Frontier, FrontierConfig

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]
OPTIONS = ["data.tasks.sampling=frontier", "actor_rollout_ref.rollout.n=2"]
OPTIONS += ["trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=null"]


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_run_goes_on_with_what_it_thought_of_the_tasks(workplace: Workplace, mode):
    def start():
        return workplace.start(f"frontier-{mode}", 4, *OPTIONS, *MODES[mode])

    killed = start()
    checkpoints = killed.run_dir / "checkpoints"
    saved = checkpoints / "latest_checkpointed_iteration.txt"
    killed.wait_for(lambda: saved.is_file() and saved.read_text() == "2", timeout_s=1800)
    killed.stop()
    resumed = start()
    resumed.wait(timeout_s=1800)

    run = open_run(resumed.run_dir)
    success = {(episode.uid, episode.session): episode.success for episode in run.episodes()}
    expected = Frontier(TASKS, 2, FrontierConfig())
    for step in range(1, 5):
        groups = [group for group in run.groups() if group.step == step]
        assert len(groups) == GROUPS
        for group in groups:
            solved = sum(success[row.uid, row.session] >= 0.5 for row in group.rows)
            expected.record(step, group.task_id, solved, len(group.rows) - solved)
        state = torch.load(checkpoints / f"global_step_{step}" / "data.pt", weights_only=False)["dataset_state"]
        counts = {task_id: row[:2] for task_id, row in expected.state_dict()["tasks"].items()}
        assert state["step"] == step
        assert {task_id: pytest.approx(row) for task_id, row in counts.items()} == {
            task_id: row[:2] for task_id, row in state["tasks"].items()
        }
        drawn = sum(row[2] for row in state["tasks"].values())
        assert drawn == step * GROUPS if mode == "sync" else drawn >= step * GROUPS
    logged = read_steps(resumed.run_dir)
    assert set(logged) == {3, 4} and all(0 < row["frontier/expected_informative"] < 1 for row in logged.values())
    assert {estimate.task_id for estimate in run.frontier()} == set(TASKS)
