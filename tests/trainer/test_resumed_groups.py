"""`replay.mode: resume` in the stock trainer, in each of its modes: two steps in which groups begin within the expert's
successes."""

import json
import statistics

import pytest
import torch
from replay_resume import MODES
from trainer_run import GROUPS, TASKS, read_steps

from arpo_verl.tasks.expert import expert_replies

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

# The seeds' context, a row a step: one of given steps gives way to the policy's.
OPTIONS = ["replay.mode=resume", "+replay.resume_after=0", "actor_rollout_ref.rollout.n=2", "trainer.save_freq=1"]
OPTIONS += ["gui_agent.context=window", "gui_agent.max_screenshots=1", "trainer.max_actor_ckpt_to_keep=null"]
STEPS = 2


@pytest.fixture(scope="module", params=MODES)
def resuming(request, workplace, seeds):
    """A run to its end. Returns its mode, its folder and its episodes."""
    options = [*OPTIONS, *MODES[request.param].options, f"replay.seed_from={seeds}"]
    trainer = workplace.start(f"resuming-{request.param}", STEPS, *options)
    trainer.wait(1800.0)
    paths = trainer.run_dir.glob("trajectories/step_*/*/episode.json")
    return request.param, trainer.run_dir, [json.loads(path.read_text()) for path in paths]


def test_groups_begin_alike_and_teach_what_the_policy_wrote(resuming):
    mode, _, episodes = resuming
    assert len(episodes) == 2 * STEPS * GROUPS if mode == "sync" else len(episodes) >= 2 * STEPS * GROUPS
    given = {}
    for episode in episodes:
        given.setdefault(episode["uid"], set()).add(episode["given_steps"])
    assert all(len(steps) == 1 for steps in given.values())  # each desktop came to the recorded state
    # Two of the expert's steps are left, and what has no more is begun at the beginning.
    for episode in (episode for episode in episodes if episode["step"] == 1):
        assert episode["given_steps"] == max(0, len(expert_replies(episode["task_id"])) - 2)
    assert any(episode["given_steps"] for episode in episodes)
    for episode in episodes:
        assert episode["num_steps"] > episode["given_steps"]
        assert all(row["reply_tokens"] > 0 for row in episode["rows"])
        own = episode["num_steps"] - episode["given_steps"]
        assert len(episode["rows"]) <= own


def test_its_metrics_tell_help_apart(resuming):
    mode, folder, episodes = resuming
    logged = read_steps(folder)
    assert set(logged) == set(range(1, STEPS + 1))
    for step, data in logged.items():
        assert data["curriculum/missed"] == data["replay/injected"] == 0
        assert 0 <= data["curriculum/rollouts"] <= 2 * GROUPS
        if mode == "sync":
            helped = [e["success"] for e in episodes if e["step"] == step and e["given_steps"]]
            assert data["curriculum/rollouts"] == len(helped)
            assert ("rollout/success_mean" in data) == (len(helped) < 2 * GROUPS)
            assert not helped or data["curriculum/success_mean"] == pytest.approx(statistics.fmean(helped))


def test_the_curriculum_is_in_the_checkpoint_and_moved_where_the_task_was_solved(resuming):
    mode, folder, episodes = resuming
    path = folder / "checkpoints" / f"global_step_{STEPS}" / "data.pt"
    state = torch.load(path, weights_only=False)["dataset_state"]["resume"]
    assert set(state) == set(TASKS)
    drawn = sum(count for _, _, count in state.values())
    assert drawn == STEPS * GROUPS if mode == "sync" else drawn >= STEPS * GROUPS
    if mode == "sync":
        for task_id, (_, left, _) in state.items():
            helped = [e["success"] for e in episodes if e["task_id"] == task_id and e["given_steps"]]
            assert left > 2 or not helped or statistics.fmean(helped) < 0.5
