"""A run whose node is taken away: a checkpoint is asked for, SIGTERM ends it, nothing stays, and it goes on."""

import json

import pytest
from trainer_run import await_end

from arpo_verl.plugin.checkpoints import REQUEST_FILE
from arpo_verl.replay.store.persistence import load_store

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]
TIMEOUT_S = 3600.0


def test_a_run_that_is_preempted_saves_when_asked_leaves_nothing_and_goes_on(workplace):
    rare = ["actor_rollout_ref.rollout.n=2", "trainer.save_freq=1000"]
    first = workplace.start("preempted", 50, *rare, groups=4)
    checkpoints = first.run_dir / "checkpoints"
    first.wait_for(lambda: any((first.run_dir / "trajectories").glob("step_*/*/episode.json")), TIMEOUT_S)
    checkpoints.mkdir(exist_ok=True)
    (checkpoints / REQUEST_FILE).touch()
    latest = checkpoints / "latest_checkpointed_iteration.txt"
    # The request goes when the store is in the checkpoint, and the next step plays.
    first.wait_for(lambda: latest.exists() and not (checkpoints / REQUEST_FILE).exists(), TIMEOUT_S)
    saved = int(latest.read_text())
    assert saved < 1000 and load_store(checkpoints / f"global_step_{saved}" / "replay", fingerprint=None) is not None
    processes = first.processes()
    first.terminate()
    assert processes and await_end(processes) == []

    second = workplace.start("preempted", saved + 1, *rare, groups=4)
    second.wait(TIMEOUT_S)
    assert f"global_step_{saved}" in second.output()
    steps = [json.loads(line)["step"] for line in (second.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps[0] == saved + 1
