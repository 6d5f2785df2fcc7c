"""Rollout workers that are killed: veRL's manager and its queue, real processes, episodes that do what they are told."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
import ray
from omegaconf import OmegaConf
from support.scripted_workers import Play

from arpo_verl.cpu.warm_workers import py_executable
from arpo_verl.errors import RolloutWorkerError
from arpo_verl.plugin import handover, rollout_workers, sampler
from arpo_verl.plugin.handover import TrainerFault
from arpo_verl.plugin.sampler import ReplaySampler, ReplaySamplerAsync

PATIENCE_S = 120


@pytest.fixture(scope="module")
def queue(start_ray, tmp_path_factory):
    """As the folder's, but a worker that takes another's place is there at once: a fork."""
    import transfer_queue as tq

    with tempfile.TemporaryDirectory() as folder:
        start_ray(num_cpus=8, runtime_env={"py_executable": py_executable(Path(folder))})
        backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
        tq.init(OmegaConf.create({"enable": True, "backend": backend}))
        yield tq
        tq.close()
        ray.shutdown()


@pytest.fixture(autouse=True)
def fault(monkeypatch):
    """No fault of another test."""
    own = TrainerFault()
    for module in (handover, rollout_workers, sampler):
        monkeypatch.setattr(module, "TRAINER_FAULT", own)
    return own


@pytest.fixture
def play(empty_queue):
    """Make a `Play`; it is closed after the test."""
    made = []

    def make(*args, **kwargs):
        made.append(Play(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def status(tq, uid, partition_id="train"):
    return tq.kv_list(partition_id)[partition_id].get(uid, {}).get("status")


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def test_a_prompt_of_which_nothing_is_left_starts_again_on_another_worker(play, queue):
    run = play()
    first, second = run.draw(2)
    (victim,), (other,) = run.begun(f"{first}_0"), run.begun(f"{second}_0")
    assert victim != other
    kill(victim)
    assert run.begun(f"{first}_0", times=2) == [victim, other]
    run.tell(f"{uid}_{session}" for uid in (first, second) for session in range(2))
    wait_for(lambda: {status(queue, uid) for uid in (first, second)} == {"finished"})
    assert len(run.begun(f"{second}_0")) == 1
    assert {victim, other}.isdisjoint(set(run.pids()) - {other})
