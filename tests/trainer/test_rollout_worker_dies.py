"""The stock trainer in its three modes, and in the first step its only rollout worker is killed with SIGKILL."""

import json
import os

import psutil
import pytest
from support.trained_rows import trained_rows
from trainer_run import MODES, ROOT, read_steps

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

STEPS = 2
SESSIONS = 32
PATIENCE_S = 1800.0


@pytest.fixture(scope="module", params=MODES)
def killed(request, workplace):
    """A run in a mode, to its end; the worker dies when groups are half finished."""
    mode = request.param
    name = f"worker-dies-{mode}"
    let_go = workplace.folder / f"{name}-let-go"
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"VERL_USE_EXTERNAL_MODULES": "support.hold_sessions", "PYTHONPATH": path, "ARPO_VERL_HOLD": str(let_go)}
    trainer = workplace.start(name, STEPS, *MODES[mode], env=env)
    # Of a group three sessions end: with so many the rows of the first are in the queue.
    trainer.wait_for(lambda: len(episodes(trainer.run_dir)) >= 9, PATIENCE_S)
    let_go.touch()
    (worker,) = [process for process in trainer.processes() if is_worker(process)]
    worker.kill()
    trainer.wait(PATIENCE_S)
    return mode, trainer.run_dir


def is_worker(process):
    try:
        return any("agent_loop_worker" in word or "GuiAgentLoopWorker" in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False


def episodes(folder):
    """The rewards of those that were recorded, by prompt and session."""
    found = [json.loads(path.read_text()) for path in folder.glob("trajectories/step_*/*/episode.json")]
    return {f"{episode['uid']}_{episode['session']}": episode["reward"] for episode in found}


def test_the_run_goes_on_and_scores_what_was_played(killed):
    mode, folder = killed
    assert sorted(read_steps(folder)) == [1, 2]
    recorded = episodes(folder)
    trained = {step: trained_rows(folder, step) for step in (1, 2)}
    assert len(trained[1]) == len(trained[2]) == SESSIONS
    for rows in trained.values():
        for episode, row in rows.items():
            assert row["replay"] or row["reward"] == pytest.approx(recorded[episode])
    if mode == "sync":  # with a buffer the run ends while others are played
        assert not list(folder.glob("trajectories/step_*/.*")), "records of episodes that never ended"


def test_the_loss_is_in_the_metrics(killed):
    mode, folder = killed
    steps = read_steps(folder).values()
    assert sum(data["environment/rollout_workers_lost"] for data in steps) == 1
    assert sum(data["environment/dropped_sessions"] for data in steps) == 0
