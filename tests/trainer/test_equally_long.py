"""The stock trainer with a step of rows that are equally long: veRL by itself mistakes their position ids' shape."""

import pytest
from trainer_run import TASKS, read_steps

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]


def test_a_step_of_rows_that_are_equally_long_is_trained_on(workplace):
    batch = [
        "data.train_batch_size=1",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    ]
    replies = ["gui_agent.max_steps=1", "gui_agent.max_reply_tokens=4"]  # all are cut there
    trainer = workplace.start("equally-long", 1, *batch, *replies, groups=len(TASKS))
    trainer.wait(timeout_s=1800.0)
    (step,) = read_steps(trainer.run_dir).values()
    assert step["response_length/min"] == step["response_length/max"] and "actor/grad_norm" in step
