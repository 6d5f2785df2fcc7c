"""The stock trainer in its three modes; in its second step a process that it needs is killed with SIGKILL."""

import time

import psutil
import pytest
from trainer_run import MODES, await_end, read_steps

from arpo_verl.records.faults import read_faults

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

STEPS = 2
PATIENCE_S = 1800.0
ENDS_WITHIN_S = 60.0
PROCESSES = {
    "storage": ("SimpleStorageUnit", "A storage of veRL's queue died: "),
    "engine": ("TransformersServer", "A rollout engine died: transformers_server_"),
    "worker": ("GuiAgentLoopWorker", "A rollout worker died: agent_loop_worker_"),
    "pool": ("PoolActor", "A desktop pool died: arpo_verl_desktop_pool"),
    "trainer": ("TaskRunnerV1", "A process of the run died. Ray says: ActorDiedError"),
    "head": ("gcs_server", "Ray's head process (gcs_server) is gone"),
}
"""By name, words of the process's command line, and how the run's last sentence begins."""
CRASHES = [("sync", name) for name in PROCESSES]
CRASHES += [("colocate_async", "storage"), ("colocate_async", "worker")]
CRASHES += [("separate_async", "storage"), ("separate_async", "engine"), ("separate_async", "pool")]


@pytest.mark.parametrize(("mode", "name"), CRASHES)
def test_a_run_that_loses_a_process_ends_with_a_sentence_and_the_same_command_resumes_it(workplace, mode, name):
    words, sentence = PROCESSES[name]

    def start():
        return workplace.start(f"{name}-{mode}", STEPS, *MODES[mode], "trainer.save_freq=1", groups=4)

    trainer = start()
    episodes = trainer.run_dir / "trajectories" / "step_000002"
    saved = trainer.run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    trainer.wait_for(lambda: saved.exists() and any(episodes.glob("*")), PATIENCE_S)
    processes = trainer.processes()
    next(process for process in processes if names(process, words)).kill()
    killed_at = time.monotonic()
    with pytest.raises(RuntimeError, match="the trainer ended badly"):
        trainer.wait(PATIENCE_S)
    took_s = time.monotonic() - killed_at
    (fault,) = read_faults(trainer.run_dir)
    print(f"{mode} {name}: ended after {took_s:.1f} s: {fault.sentence}")
    assert took_s < ENDS_WITHIN_S
    assert fault.sentence.startswith(sentence) and "start the same command again" in fault.sentence
    if name != "head":  # Ray ends the driver then, in its own way
        assert f"the run ended: {fault.sentence}" in trainer.output()
    assert await_end(processes) == []
    again = start()
    again.wait(PATIENCE_S)
    assert sorted(read_steps(again.run_dir)) == [2] and len(read_faults(again.run_dir)) == 1


def names(process, words):
    try:
        return any(words in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False
