import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.replay_trajectories import stored

from arpo_verl.errors import ReplayError
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.types import EpisodeId


def test_the_oldest_of_a_task_leaves_when_the_task_is_full():
    store = SuccessStore(2)
    for step in (1, 2, 3):
        store.add(stored("a", step=step))
    store.add(stored("b", step=4))
    assert [t.step for t in store.of_task("a")] == [2, 3]
    assert [t.step for t in store.trajectories()] == [2, 3, 4]
    assert (len(store), store.num_tasks) == (3, 2)


def test_an_identical_screenshot_is_held_and_counted_once():
    store = SuccessStore(1)
    first_screen = b"d" * 1000
    for task in "ab":
        store.add(stored(task, screenshots=[bytes(bytearray(first_screen)), task.encode()]))
    (a,), (b,) = store.of_task("a"), store.of_task("b")
    assert a.screenshots[0] is b.screenshots[0]

    def screenshot_bytes():
        return store.num_bytes - sum(len(record.record) for _, record in store.records())

    assert screenshot_bytes() == 1000 + 2
    store.add(stored("a", screenshots=[b"z"]))  # evicts the old one of a: the shared screenshot stays for b
    assert screenshot_bytes() == 1000 + 2
    store.add(stored("b", screenshots=[b"z"]))
    assert screenshot_bytes() == 1


def test_equal_successes_are_equal_candidates():
    store = SuccessStore(8)
    for step, uid in ((1, "p"), (1, "q"), (2, "q")):
        store.add(stored("a", step, episode=EpisodeId(step, uid, 0)))
    first, second, third = store.candidates("a")
    assert first == second != third and first.serial != second.serial
    assert (first.task_id, first.step, first.success, first.reward) == ("a", 1, 1.0, 1.0)
    assert store.candidates("c") == ()


def test_the_store_needs_neither_torch_nor_verl():
    modules = ["success_store", "persistence", "inspection", "merging", "export"]
    code = "import sys\n" + "".join(f"import arpo_verl.replay.store.{module}\n" for module in modules)
    code += "sys.exit(' '.join({'torch', 'verl', 'ray', 'transformers'} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_log_probs_and_ids_come_back_to_the_bit():
    log_probs = np.random.default_rng(0).normal(-1, 1, 50).astype(np.float32).tolist()
    trajectory = stored(tokens=50, rollout_log_probs=log_probs, prompt_ids=[2**31 - 1, 0, 151_655])
    store = SuccessStore(1)
    store.add(trajectory)
    (held,) = store.trajectories()
    assert held == trajectory == pickle.loads(pickle.dumps(trajectory))
    assert held.rollout_log_probs.tolist() == log_probs and list(held.prompt_ids) == [2**31 - 1, 0, 151_655]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_id": ""}, "must name its task"),
        ({"response_ids": (), "response_mask": (), "rollout_log_probs": ()}, "must not be empty"),
        ({"response_mask": (1,)}, "response_mask must have one entry for each of the 2 response tokens, got 1"),
        ({"rollout_log_probs": (0.0,) * 3}, "rollout_log_probs must have one entry"),
    ],
)
def test_a_trajectory_that_does_not_hold_together_is_refused(changes, message):
    with pytest.raises(ReplayError, match=message):
        stored(**changes)


additions = st.lists(
    st.builds(
        lambda task, screens, tokens: stored(task, screenshots=screens, tokens=tokens),
        st.sampled_from("abc"),
        st.lists(st.sampled_from([b"", b"p" * 50, b"q" * 500, b"r" * 1500]), max_size=4),
        st.integers(1, 5),
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(additions=additions, per_task=st.integers(1, 4))
def test_capacity_order_and_byte_count_hold_after_any_additions(additions, per_task):
    store = SuccessStore(per_task)
    added = []
    for step, trajectory in enumerate(additions):
        trajectory = stored(trajectory.task_id, step, trajectory.screenshots, len(trajectory.prompt_ids))
        store.add(trajectory)
        added.append(trajectory)
        held = store.trajectories()
        assert len(held) == len(store) and store.num_tasks == len({t.task_id for t in held})
        for task in "abc":  # what a task holds is always its newest, in order
            assert list(store.of_task(task)) == [t for t in added if t.task_id == task][-per_task:]
        shots = {shot for t in held for shot in t.screenshots}
        records = sum(len(record.record) for _, record in store.records())
        assert store.num_bytes == records + sum(map(len, shots))
    store.clear()
    assert (len(store), store.num_bytes) == (0, 0)


@settings(max_examples=50)
@given(additions=additions)
def test_adding_a_stores_trajectories_to_an_empty_store_gives_it_again(additions):
    store, again = SuccessStore(3), SuccessStore(3)
    for trajectory in additions:
        store.add(trajectory)
    for trajectory in store.trajectories():
        again.add(trajectory)
    assert again.trajectories() == store.trajectories() and again.num_bytes == store.num_bytes
