"""The stock trainer with two rollout engines on a CPU; in the first step one is killed with SIGKILL."""

import json

import psutil
import pytest
from trainer_run import read_steps

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

STEPS = 2
SESSIONS = 32
PATIENCE_S = 1800.0
# Two training workers, each with an engine; only the loss has the first step saved.
OPTIONS = ["trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2", "trainer.save_freq=100"]


@pytest.fixture(scope="module")
def run(workplace):
    """A run that loses an engine in its first step and ends, and the same command again. Returns folder and outputs."""
    trainer = workplace.start("engine-dies", STEPS, *OPTIONS)
    trainer.wait_for(lambda: len(episodes(trainer.run_dir)) >= 4, PATIENCE_S)
    engines = [process for process in trainer.processes() if is_engine(process)]
    assert len(engines) == 2
    engines[0].kill()
    with pytest.raises(RuntimeError, match="the trainer ended badly"):
        trainer.wait(PATIENCE_S)
    first, steps = trainer.output(), read_steps(trainer.run_dir)
    again = workplace.start("engine-dies", STEPS, *OPTIONS)
    again.wait(PATIENCE_S)
    return trainer.run_dir, first, steps, read_steps(trainer.run_dir)


def is_engine(process):
    try:
        return any("transformersserver" in word.lower().replace("_", "") for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False


def episodes(folder):
    return list(folder.glob("trajectories/step_*/[!.]*/episode.json"))


def test_the_step_loses_no_session_and_is_trained_to_its_end(run):
    folder, _, steps, _ = run
    assert sorted(steps) == [1]
    assert steps[1]["environment/dropped_sessions"] == 0
    assert steps[1]["engines/lost"] == 1 and steps[1]["engines/retried_calls"] >= 1
    lines = (folder / "trajectories" / "step_000001" / "groups.jsonl").read_text().splitlines()
    assert sum(len(json.loads(line)["rows"]) for line in lines) == SESSIONS


def test_the_run_then_ends_with_one_error_that_names_the_engine(run):
    _, output, _, _ = run
    assert "EngineLostError: Rollout engine transformers_server_" in output
    assert "UTC: ActorDiedError" in output and "it resumes from the last checkpoint" in output


def test_the_same_command_goes_on_behind_that_step(run):
    folder, _, _, steps = run
    assert sorted(steps) == [2] and steps[2]["engines/lost"] == 0
    assert (folder / "checkpoints" / "global_step_1").is_dir()
