"""Both of the reference's runs, converted and shrunk to embedded desktops, train two steps in the stock trainer."""

import json

import pytest
from tools.migration.embedded import embedded_overrides
from tools.migration.reference_run import RUNS, write_run
from trainer_run import TrainerRun, read_steps

from arpo_verl.tools.cli.main import main

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]
TIMEOUT_S = 1800.0


@pytest.mark.parametrize("name", RUNS)
def test_a_converted_run_trains_two_steps(name, workplace, tmp_path):
    recipe = tmp_path / f"{name}.yaml"
    assert main(["convert", str(write_run(tmp_path, name)), "--out", str(recipe)]) == 0
    overrides = embedded_overrides(policy=workplace.policy, tasks=workplace.tasks)
    # Two rollouts of a task instead of eight; the tasks as often as a step draws them.
    prompts = RUNS[name]["prompts"]
    overrides += ["actor_rollout_ref.rollout.n=2", f"++data.tasks.repeat={max(1, prompts // 4)}"]
    overrides += ["trainer.total_training_steps=2", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    overrides += ["trainer.save_freq=-1", "trainer.logger=[console,file]"]
    run = TrainerRun(tmp_path / "run", *overrides, recipe=recipe)
    run.wait(TIMEOUT_S)
    steps = read_steps(run.run_dir)
    assert sorted(steps) == [1, 2]
    episodes = [json.loads(path.read_text()) for path in run.run_dir.glob("trajectories/step_*/*/episode.json")]
    assert len(episodes) == 2 * 2 * prompts
    # The reference's weight of a reply that cannot be read.
    rewards = {(e["success"], e["stop_reason"] == "parse_error"): e["reward"] for e in episodes}
    assert all(reward == success - 0.5 * failed for (success, failed), reward in rewards.items())
