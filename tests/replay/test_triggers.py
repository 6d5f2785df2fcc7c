"""Which groups get a replay, and how many: every option of the trigger changes something."""

from collections import Counter

import pytest
from support.replay_trajectories import stored

from arpo_verl.replay.choice import Group, Outcome, choose_replays
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.success_store import SuccessStore


def group(*scores, task_id="a", uid="u"):
    outcomes = (Outcome(f"{uid}_{i}_0", task_id, s, s, False, "finished", 3) for i, s in enumerate(scores))
    return Group(task_id, tuple(outcomes))


def store_of(*trajectories):
    store = SuccessStore(8, 10**9)
    for trajectory in trajectories:
        store.add(trajectory)
    return store


def plan(groups, store, step=9, draw=0, **options):
    return choose_replays(groups, store, ReplayConfig(**options), step, draw)


FAILED, PARTIAL, RARE, SOLVED = (0,) * 8, (0.6,) * 8, (1, *(0,) * 7), (1,) * 8


@pytest.mark.parametrize(
    ("trigger", "chosen"),
    [
        ("all_failed", {"failed"}),
        ("all_equal", {"failed", "partial"}),
        ("below_floor", {"failed", "rare"}),
    ],
)
def test_each_trigger_asks_for_other_groups_and_none_for_a_solved_one(trigger, chosen):
    groups = {"failed": FAILED, "partial": PARTIAL, "rare": RARE, "solved": SOLVED}
    store = store_of(*(stored(name, success=1.0) for name in groups))
    plans = plan([group(*scores, task_id=name) for name, scores in groups.items()], store, trigger=trigger)
    assert {replacement.outcome.task_id for replacement in plans} == chosen


def test_a_replay_is_better_than_the_rollout_that_it_replaces():
    half, full = stored(step=1, success=0.6), stored(step=2, success=1.0)
    for step in range(20):
        (replacement,) = plan([group(*PARTIAL)], store_of(half, full), step=step, trigger="all_equal")
        assert replacement.candidate.step == 2
    assert plan([group(*PARTIAL)], store_of(half), trigger="all_equal") == ()
    (replacement,) = plan([group(*RARE)], store_of(full), trigger="below_floor")
    assert replacement.outcome.success == 0


def test_no_success_is_used_twice_in_a_batch_however_often_it_is_stored():
    groups = [group(0, 0, uid=uid) for uid in "pqrs"]
    store = store_of(stored(step=1), stored(step=2), stored(step=2), stored("b", step=3))
    assert sorted(r.candidate.step for r in plan(groups, store)) == [1, 2]


def test_the_choice_does_not_depend_on_which_groups_finished_first():
    store = store_of(*(stored(task_id, step=step) for task_id in "ab" for step in range(6)))
    groups = [group(0, 0, task_id=task_id, uid=f"{task_id}{i}") for task_id in "ab" for i in range(3)]

    def used(order, **options):
        return Counter((r.candidate.task_id, r.candidate.step) for r in plan(order, store, **options))

    for options in ({}, {"max_share": 0.25}, {"probability": 0.5}):
        assert used(groups, **options) == used(groups[::-1], **options)


def test_more_groups_only_add_to_the_plan():
    """So that what is rebuilt while the others still generate is what will be wanted."""
    store = store_of(*(stored(task_id, step=step) for task_id in "ab" for step in range(6)))
    groups = [group(0, 0, task_id=task_id, uid=f"{task_id}{i}") for i in range(3) for task_id in "ab"]
    for number in range(1, 6):
        assert plan(groups, store)[:number] == plan(groups[:number], store)


def test_probability_is_the_share_of_groups_that_get_one():
    store = store_of(stored())
    hits = [len(plan([group(0, 0)], store, step=step, probability=0.25)) for step in range(2000)]
    assert abs(sum(hits) - 500) < 100  # 5 sigma is 97
    assert hits == [len(plan([group(0, 0)], store, step=step, probability=0.25)) for step in range(2000)]


@pytest.mark.parametrize(("max_share", "most"), [(1.0, 6), (0.25, 3), (0.1, 1), (0.05, 0)])
def test_no_more_than_the_share_of_a_batch_is_replayed(max_share, most):
    store = store_of(*(stored(str(i)) for i in range(6)))
    groups = [group(0, 0, task_id=str(i), uid=str(i)) for i in range(6)]  # 12 rows
    counts = Counter(r.outcome.task_id for s in range(300) for r in plan(groups, store, step=s, max_share=max_share))
    assert sum(counts.values()) == 300 * most
    if 0 < most < 6:  # every task is as likely as the others
        assert all(abs(counts[str(i)] - 50 * most) < 50 for i in range(6))


def test_a_share_that_is_a_whole_number_of_rows_but_for_rounding_is_that_number():
    store = store_of(*(stored(str(i)) for i in range(50)))
    groups = [group(0, 0, task_id=str(i), uid=str(i)) for i in range(50)]
    assert 0.29 * 100 < 29 and len(plan(groups, store, max_share=0.29)) == 29


def test_a_success_that_is_too_old_is_not_replayed():
    store = store_of(stored(step=1), stored(step=5))
    steps = {r.candidate.step for s in range(40) for r in plan([group(0, 0)], store, step=8, seed=s, max_age_steps=3)}
    assert steps == {5}
    assert plan([group(0, 0)], store, step=9, max_age_steps=3) == ()
    assert {plan([group(0, 0)], store, step=9, seed=s)[0].candidate.step for s in range(40)} == {1, 5}


def test_a_second_batch_of_the_same_step_draws_anew():
    store = store_of(*(stored(step=step) for step in range(8)))
    chosen = {plan([group(0, 0)], store, draw=draw)[0].candidate.step for draw in range(30)}
    assert len(chosen) > 3
