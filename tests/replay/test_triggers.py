"""Which groups get a replay, which success, and that neither depends on who finished first."""

from collections import Counter

from support.replay_trajectories import stored

from arpo_verl.replay.choice import Group, Outcome, choose_replays
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.success_store import SuccessStore


def group(*scores, task_id="a", uid="u"):
    outcomes = (Outcome(f"{uid}_{i}_0", task_id, s, s, False, "finished", 3) for i, s in enumerate(scores))
    return Group(task_id, tuple(outcomes))


def store_of(*trajectories):
    store = SuccessStore(8)
    for trajectory in trajectories:
        store.add(trajectory)
    return store


def plan(groups, store, step=9, draw=0, **options):
    return choose_replays(groups, store, ReplayConfig(**options), step, draw)


FAILED, PARTIAL, RARE, SOLVED = (0,) * 8, (0.6,) * 8, (1, *(0,) * 7), (1,) * 8


def test_only_a_group_that_all_failed_gets_a_replay():
    groups = {"failed": FAILED, "partial": PARTIAL, "rare": RARE, "solved": SOLVED}
    store = store_of(*(stored(name, success=1.0) for name in groups))
    plans = plan([group(*scores, task_id=name) for name, scores in groups.items()], store)
    assert {replacement.outcome.task_id for replacement in plans} == {"failed"}


def test_a_replay_is_better_than_the_rollout_that_it_replaces():
    half, full = stored(step=1, success=0.6), stored(step=2, success=1.0)
    wide = {"mean_threshold": 0.7, "success_threshold": 0.7}
    for step in range(20):
        (replacement,) = plan([group(*PARTIAL)], store_of(half, full), step=step, **wide)
        assert replacement.candidate.step == 2
    assert plan([group(*PARTIAL)], store_of(half), **wide) == ()


def test_no_success_is_used_twice_in_a_batch_however_often_it_is_stored():
    groups = [group(0, 0, uid=uid) for uid in "pqrs"]
    store = store_of(stored(step=1), stored(step=2), stored(step=2), stored("b", step=3))
    assert sorted(r.candidate.step for r in plan(groups, store)) == [1, 2]


def test_the_choice_does_not_depend_on_which_groups_finished_first():
    store = store_of(*(stored(task_id, step=step) for task_id in "ab" for step in range(6)))
    groups = [group(0, 0, task_id=task_id, uid=f"{task_id}{i}") for task_id in "ab" for i in range(3)]

    def used(order):
        return Counter((r.candidate.task_id, r.candidate.step) for r in plan(order, store))

    assert used(groups) == used(groups[::-1])


def test_more_groups_only_add_to_the_plan():
    """So that what is rebuilt while the others still generate is what will be wanted."""
    store = store_of(*(stored(task_id, step=step) for task_id in "ab" for step in range(6)))
    groups = [group(0, 0, task_id=task_id, uid=f"{task_id}{i}") for i in range(3) for task_id in "ab"]
    for number in range(1, 6):
        assert plan(groups, store)[:number] == plan(groups[:number], store)


def test_a_second_batch_of_the_same_step_draws_anew():
    store = store_of(*(stored(step=step) for step in range(8)))
    chosen = {plan([group(0, 0)], store, draw=draw)[0].candidate.step for draw in range(30)}
    assert len(chosen) > 3
