"""What ARPO's rule replays into the groups of a batch."""

from collections import Counter

import pytest
from support.replay_trajectories import group, store_of, stored

from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.methods.arpo import Arpo


def plan(groups, store, step=9, draw=0, **options):
    return Arpo().choose(groups, store, ReplayConfig(**options), step, draw)


@pytest.mark.parametrize(
    ("scores", "task_id", "steps"),
    [
        ((0, 0, 0, 0), "b", [2]),
        *(((0, 0, 1), "a", []), ((1, 1), "a", [])),  # they need none
        *(((0,), "a", []), ((1,), "a", [])),  # lone rollouts
        ((0, 0), "c", []),  # nothing is stored
    ],
)
def test_an_all_failed_group_gets_one_success_of_its_own_task(scores, task_id, steps):
    chosen = plan([group(*scores, task_id=task_id)], store_of(stored("a", step=1), stored("b", step=2)), step=5)
    assert [(one.candidate.step, one.outcome.task_id) for one in chosen] == [(step, task_id) for step in steps]


def test_victim_and_success_are_random_but_fixed_by_seed_step_and_task():
    store = store_of(*(stored("a", step=step) for step in range(4)))

    def chosen(step, seed=0, groups=None):
        plan = Arpo().choose(groups or [group(0, 0, 0, 0)], store, ReplayConfig(seed=seed), step)
        return [(r.outcome.session, r.candidate.step) for r in plan]

    assert chosen(7) == chosen(7)
    pairs = Counter(pair for step in range(1600) for pair in chosen(step))
    assert len(pairs) == 16 and all(abs(count - 100) < 50 for count in pairs.values())  # 5 sigma is 48
    assert [chosen(7, seed=s) for s in range(9)] != [chosen(7)] * 9
    # Another task's group in between changes nothing; a second group of the task draws anew.
    other = group(0, 0, task_id="b", uid="v")
    same = [group(0, 0, 0, 0, uid=uid) for uid in "wx"]
    assert chosen(7, groups=[other, *same])[:1] == chosen(7)
    assert any(len(set(chosen(step, groups=same))) == 2 for step in range(5))


def test_a_replay_is_better_than_the_rollout_that_it_replaces():
    half, full = stored(step=1, success=0.6), stored(step=2, success=1.0)
    wide = {"mean_threshold": 0.7, "success_threshold": 0.7}
    for step in range(20):
        (replacement,) = plan([group(*[0.6] * 8)], store_of(half, full), step=step, **wide)
        assert replacement.candidate.step == 2
    assert plan([group(*[0.6] * 8)], store_of(half), **wide) == ()


def test_no_success_is_used_twice_in_a_batch_however_often_it_is_stored():
    groups = [group(0, 0, uid=uid) for uid in "pqrs"]
    store = store_of(stored(step=1), stored(step=2), stored(step=2), stored("b", step=3))
    assert sorted(r.candidate.step for r in plan(groups, store)) == [1, 2]


def test_more_groups_only_add_to_the_plan():
    """So that what is rebuilt while the others still generate is what will be wanted."""
    store = store_of(*(stored(task_id, step=step) for task_id in "ab" for step in range(6)))
    groups = [group(0, 0, task_id=task_id, uid=f"{task_id}{i}", drawn=i) for i in range(3) for task_id in "ab"]
    for number in range(1, 6):
        assert plan(groups, store)[:number] == plan(groups[:number], store)


def test_a_second_batch_of_the_same_step_draws_anew():
    store = store_of(*(stored(step=step) for step in range(8)))
    chosen = {plan([group(0, 0)], store, draw=draw)[0].candidate.step for draw in range(30)}
    assert len(chosen) > 3


def test_a_graded_failure_can_be_replaced_but_never_a_success():
    config = ReplayConfig(std_threshold=0.5, mean_threshold=0.5, success_threshold=0.6)
    scores = group(0.7, 0.0, 0.1)  # triggers under these wide thresholds, yet one member succeeded
    victims = {Arpo().choose([scores], store_of(stored()), config, s)[0].outcome.session for s in range(60)}
    assert victims == {1, 2}
