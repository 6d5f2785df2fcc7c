"""A run killed with `kill -9`, and one that goes on from its checkpoint: the same store, the same next injection."""

import json
from collections import Counter

import pytest
from support.trajectory_digest import digest
from trainer_run import await_end

from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group, Outcome
from arpo_verl.replay.methods.arpo import Arpo
from arpo_verl.replay.store.persistence import load_store

pytestmark = [pytest.mark.trainer, pytest.mark.desktop]


def replays(run, step):
    return [tuple(replay) for replay in json.loads((run.folder / "recorded" / f"replays-{step}.json").read_text())]


def store_at(run, step):
    return load_store(run.folder / "checkpoints" / f"global_step_{step}" / "replay", fingerprint=None)


def planned(store, task_id, number, step):
    """The first `number` replays for groups of the task that failed in this step."""
    content = store.of_task(task_id)[0].task_content
    failed = (task_id, 0.0, 0.0, False, "finished", 1)
    groups = [
        Group(task_id, tuple(Outcome(f"{uid}_{i}_0", *failed, task_content=content) for i in range(2)))
        for uid in range(number)
    ]
    plan = Arpo().choose(groups, store, ReplayConfig(), step)
    return {tuple(digest(store.trajectory(replacement.candidate.serial))) for replacement in plan}


def test_nothing_of_the_killed_run_is_left(killed):
    """Ray's processes, the workers and the desktops end by themselves."""
    _, processes = killed
    assert processes
    assert await_end(processes) == []


def test_the_checkpoints_hold_the_store_of_their_step(runs):
    for step, run in runs.items():
        assert len(store_at(run, step)) == run.metrics[step]["replay/store_trajectories"]


def test_a_new_run_begins_with_the_seeds_and_replays_them_in_its_first_step(run, seeds):
    seeded = [tuple(digest(t)) for t in load_store(seeds, fingerprint=None).trajectories()]
    assert [tuple(t) for t in run.restored] == seeded and len(seeded) == 4
    assert len(replays(run, 1)) == run.metrics[1]["replay/injected"] >= 1
    assert set(replays(run, 1)) <= set(seeded)


def test_the_resumed_run_begins_with_the_same_store_and_not_with_the_seeds(run, resumed):
    assert [tuple(t) for t in resumed.restored] == [tuple(digest(t)) for t in store_at(run, 1).trajectories()]
    assert len(resumed.restored) > 0


def test_the_next_injection_is_the_one_that_the_checkpoint_foretells(run, resumed):
    """Rollouts are sampled, so any groups may fail; what a group gets is fixed by store, step and task."""
    store, replayed = store_at(run, 1), replays(resumed, 2)
    assert len(replayed) == resumed.metrics[2]["replay/injected"] >= 1
    for task_id, number in Counter(task_id for task_id, *_ in replayed).items():
        assert {replay for replay in replayed if replay[0] == task_id} == planned(store, task_id, number, step=2)


def test_the_resumed_run_trains_on_its_replays(resumed):
    record = resumed.estimated[2]
    advantages = [a.item() for a, replay in zip(record["advantages"], record["is_replay"], strict=True) if replay]
    assert advantages == pytest.approx([1.0] * int(resumed.metrics[2]["replay/injected"]), abs=1e-4)
