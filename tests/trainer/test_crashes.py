"""The stock trainer in its three modes. In its second step a process that it needs is killed with SIGKILL; the same
command resumes, and loses another one."""

import contextlib
import time

import psutil
import pytest
from trainer_run import MODES, await_end, read_steps

from arpo_verl.plugin.run_watch import GO_ON
from arpo_verl.records.ended_starts import read_faults
from arpo_verl.tools.cli import trainer_process

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

STEPS = 2
PATIENCE_S = 1800.0
ENDS_WITHIN_S, HEAD_ENDS_WITHIN_S = 60.0, 120.0
"""Ray itself ends processes that have not reached their head for 60 s."""
PROCESSES = {
    "storage": ("SimpleStorageUnit", "died (SimpleStorageUnit, process"),
    "engine": ("TransformersServer", "transformers_server_"),
    "worker": ("GuiAgentLoopWorker", "agent_loop_worker_"),
    "pool": ("PoolActor", "arpo_verl_desktop_pool"),
    "trainer": ("TaskRunnerV1", "A process of the run died. Ray says: ActorDiedError"),
}
"""By name, words of the process's command line, and of the run's last sentence."""
CRASHES = {
    "sync": ("storage", "engine", "trainer"),
    "colocate_async": ("storage", "worker"),
    "separate_async": ("storage", "engine", "pool"),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_loses_a_process_ends_with_a_sentence_and_the_same_command_resumes_it(workplace, mode):
    for number, name in enumerate(CRASHES[mode], 1):
        words, sentence = PROCESSES[name]
        began, trainer = time.time(), start(workplace, mode)
        saved = trainer.run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
        trainer.wait_for(lambda: saved.exists() and plays(trainer, began), PATIENCE_S)  # noqa: B023
        processes = trainer.processes()
        next(process for process in processes if is_named(process, words)).kill()
        killed_at = time.monotonic()
        with pytest.raises(RuntimeError, match="the trainer ended badly"):
            trainer.wait(PATIENCE_S)
        took_s, faults = time.monotonic() - killed_at, read_faults(trainer.run_dir)
        print(f"{mode}: {name} dead, run ended after {took_s:.1f} s: {faults[-1:]}")
        assert took_s < ENDS_WITHIN_S and len(faults) == number
        assert sentence in faults[-1].sentence and faults[-1].sentence.endswith(GO_ON)
        assert f"the run ended: {faults[-1].sentence}" in trainer.output()
        assert await_end(processes) == []
    last = start(workplace, mode)
    last.wait(PATIENCE_S)
    assert sorted(read_steps(last.run_dir)) == [STEPS] and read_faults(last.run_dir) == faults


def test_ray_ends_a_run_that_lost_its_head(workplace):
    """What was begun goes on meanwhile: a run that needs no more than a minute ends well."""
    began, trainer = time.time(), start(workplace, "sync", 100)
    trainer.wait_for(lambda: plays(trainer, began), PATIENCE_S)
    processes = trainer.processes()
    next(process for process in processes if is_named(process, "gcs_server")).kill()
    killed_at = time.monotonic()
    with pytest.raises(RuntimeError, match="the trainer ended badly"):
        trainer.wait(PATIENCE_S)
    took_s = time.monotonic() - killed_at
    print(f"sync: head dead, run ended after {took_s:.1f} s, after {max(read_steps(trainer.run_dir), default=0)} steps")
    assert took_s < HEAD_ENDS_WITHIN_S and trainer_process._HEAD_GONE in trainer.output()
    assert await_end(processes) == []


def start(workplace, mode, steps=STEPS):
    mini_batch = f"actor_rollout_ref.actor.ppo_mini_batch_size={2 if mode == 'separate_async' else 4}"
    return workplace.start(f"crashes-{mode}", steps, *MODES[mode], mini_batch, "trainer.save_freq=1", groups=4)


def plays(trainer, began):
    """Whether it plays an episode: the files of those that an earlier start did not end are older."""
    with contextlib.suppress(FileNotFoundError):  # of one that just ended
        return any(live.stat().st_mtime > began for live in trainer.run_dir.glob("trajectories/step_*/.*/live.json"))
    return False


def is_named(process, words):
    try:
        return any(words in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False
