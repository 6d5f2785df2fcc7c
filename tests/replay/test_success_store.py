import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_trajectories import bytes_alone, stored

from arpo_verl.errors import ReplayError
from arpo_verl.replay.buffer import SuccessStore

PLENTY = 10**9


def test_the_oldest_of_a_task_leaves_when_the_task_is_full():
    store = SuccessStore(capacity_per_task=2, capacity_bytes=PLENTY)
    for step in (1, 2, 3):
        store.add(stored("a", step=step))
    store.add(stored("b", step=4))
    assert [t.step for t in store.of_task("a")] == [2, 3]
    assert [t.step for t in store.trajectories()] == [2, 3, 4]
    assert (len(store), store.num_tasks) == (3, 2)


def test_the_oldest_of_all_leaves_when_the_bytes_are_spent():
    successes = [stored(task, step=step, screenshots=[bytes([step]) * 100]) for step, task in enumerate("abc")]
    store = SuccessStore(capacity_per_task=8, capacity_bytes=2 * bytes_alone(successes[0]))
    assert all(store.add(success) for success in successes)
    assert [t.task_id for t in store.trajectories()] == ["b", "c"]
    assert store.num_tasks == 2
    assert store.num_bytes == 2 * bytes_alone(successes[0])


def test_a_trajectory_larger_than_the_budget_is_refused_and_evicts_nothing(caplog):
    store = SuccessStore(capacity_per_task=8, capacity_bytes=bytes_alone(stored("a", screenshots=[b"x" * 10])))
    assert store.add(stored("a", screenshots=[b"x" * 10]))
    assert not store.add(stored("b", screenshots=[b"y" * 11]))
    assert [t.task_id for t in store.trajectories()] == ["a"]
    assert "replay.capacity_bytes" in caplog.text


def test_an_identical_screenshot_is_held_and_counted_once():
    store = SuccessStore(capacity_per_task=1, capacity_bytes=PLENTY)
    first_screen = b"d" * 1000
    for task in "ab":
        store.add(stored(task, screenshots=[bytes(bytearray(first_screen)), task.encode()]))
    (a,), (b,) = store.of_task("a"), store.of_task("b")
    assert a.screenshots[0] is b.screenshots[0]
    both = store.num_bytes
    assert both < 2 * bytes_alone(a) - 1000
    store.add(stored("a", screenshots=[b"z"]))  # evicts the old one of a: the shared screenshot stays for b
    assert both - 200 < store.num_bytes < both
    store.add(stored("b", screenshots=[b"z"]))
    assert store.num_bytes < both - 1000


def test_a_trajectory_survives_pickling():
    trajectory = stored(extra_fields={"stop_reason": "finished", "nested": [1, {"x": 2.0}]})
    assert pickle.loads(pickle.dumps(trajectory)) == trajectory


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


@settings(max_examples=200, deadline=None)
@given(additions=additions, per_task=st.integers(1, 4), capacity_bytes=st.integers(1, 20_000))
def test_bounds_order_and_byte_count_hold_after_any_additions(additions, per_task, capacity_bytes):
    store = SuccessStore(per_task, capacity_bytes)
    accepted = []
    for step, trajectory in enumerate(additions):
        trajectory = stored(trajectory.task_id, step, trajectory.screenshots, len(trajectory.prompt_ids))
        if store.add(trajectory):
            accepted.append(trajectory)
        held = store.trajectories()
        assert store.num_bytes <= capacity_bytes
        assert all(count <= per_task for count in Counter(t.task_id for t in held).values())
        assert len(held) == len(store) and store.num_tasks == len({t.task_id for t in held})
        for task in "abc":  # what a task holds is always its newest, in order
            of_task = [t for t in accepted if t.task_id == task]
            kept = store.of_task(task)
            assert list(kept) == of_task[len(of_task) - len(kept) :]
        assert not accepted or store.trajectories()[-1:] == (accepted[-1],)


@settings(max_examples=50, deadline=None)
@given(additions=additions)
def test_adding_a_stores_trajectories_to_an_empty_store_gives_it_again(additions):
    store = SuccessStore(3, 12_000)
    for trajectory in additions:
        store.add(trajectory)
    again = SuccessStore(3, 12_000)
    for trajectory in store.trajectories():
        assert again.add(trajectory)
    assert again.trajectories() == store.trajectories() and again.num_bytes == store.num_bytes
