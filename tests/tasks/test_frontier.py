"""Frontier sampling: what it thinks of tasks, what it draws by that, and that nothing of it is left to luck."""

import random
from collections import Counter

import pytest

from arpo_verl.tasks.frontier import Frontier, FrontierConfig, informative_probability

TASKS = [f"task-{number}" for number in range(10)]
HALF = dict(zip(TASKS, [0.0] * 5 + [0.5] * 5, strict=True))
MOSTLY_SURE = dict(zip(TASKS, [0.0] * 4 + [1.0] * 4 + [0.4, 0.6], strict=True))


def frontier(seed=1, tasks=TASKS, **options):
    return Frontier(tasks, 4, FrontierConfig(**options), seed)


def play(sampling, rates, steps, groups=4, first_step=1, luck=None):
    """What a policy of these success rates lets it draw, by step."""
    luck = luck or random.Random(0)
    drawn = []
    for step in range(first_step, first_step + steps):
        batch = [sampling.draw() for _ in range(groups)]
        for task_id in batch:
            solved = sum(luck.random() < rates[task_id] for _ in range(4))
            sampling.record(step, task_id, solved, 4 - solved)
        drawn.append(batch)
    return drawn


def test_the_probability_of_an_informative_group_is_the_beta_binomials():
    # Without evidence, by Jeffreys' prior: a group of two is (success, success) and (failure, failure) with 3/8 each.
    assert informative_probability(0, 0, 2) == pytest.approx(1 / 4)
    # After one success and one failure the posterior is Beta(1.5, 1.5): E[2p(1-p)] = 2 * 1.5 * 1.5 / (3 * 4).
    assert informative_probability(1, 1, 2) == pytest.approx(3 / 8)
    assert informative_probability(8, 0, 4) == pytest.approx(informative_probability(0, 8, 4))
    assert informative_probability(0, 400, 4) < 0.01
    chances = [informative_probability(solved, 16 - solved, 8) for solved in range(9)]
    assert chances == sorted(chances), "the middle weighs most"
    failing = [informative_probability(0, failed, 8) for failed in (0, 4, 8, 16)]
    assert failing == sorted(failing, reverse=True)


def test_draws_follow_from_the_seed_and_what_was_recorded_and_each_task_comes_once_at_first():
    sampling = frontier()
    assert sorted(sampling.draw() for _ in TASKS) == TASKS
    assert play(frontier(seed=3), HALF, 20) == play(frontier(seed=3), HALF, 20)
    assert play(frontier(seed=3), HALF, 20) != play(frontier(seed=4), HALF, 20)


def test_tasks_near_the_middle_come_more_often_and_none_is_forgotten():
    drawn = Counter(task_id for batch in play(frontier(), MOSTLY_SURE, 60)[20:] for task_id in batch)
    assert set(drawn) == set(TASKS)
    assert min(drawn["task-8"], drawn["task-9"]) > 3 * max(drawn[task_id] for task_id in TASKS[:8])


def test_a_task_that_always_fails_cools_down_and_comes_back_as_its_evidence_fades():
    sampling = frontier(half_life_steps=5)
    shares = [sampling.shares()[0]]
    for step in (1, 2, 3):
        sampling.record(step, "task-0", 0, 4)
        shares.append(sampling.shares()[0])
    assert shares == sorted(shares, reverse=True)
    sampling.record(40, "task-1", 0, 0)
    assert sampling.shares()[0] == pytest.approx(shares[0], rel=0.05)


def test_a_solved_task_keeps_the_floor():
    sampling = frontier(floor=0.2, half_life_steps=1000)
    for task_id in TASKS:
        sampling.record(1, task_id, 400 if task_id == "task-0" else 2, 0 if task_id == "task-0" else 2)
    most = informative_probability(2, 2, 4)
    assert sampling.shares()[0] == pytest.approx(0.2 / (0.2 + 9 * most))


def test_draws_keep_to_the_shares():
    sampling = frontier()
    for number, task_id in enumerate(TASKS):
        sampling.record(1, task_id, number, 9 - number)
    shares = sampling.shares()
    drawn = Counter(sampling.draw() for _ in range(1000))
    assert all(abs(drawn[task_id] - 1000 * share) <= 2 for task_id, share in zip(TASKS, shares, strict=True))
    drawn = Counter(task_id for batch in play(frontier(floor=1), HALF, 50) for task_id in batch)
    assert set(drawn.values()) == {20}, "a floor of one draws all equally often"


def test_a_resumed_frontier_draws_as_the_undisturbed_one():
    undisturbed, luck = frontier(), random.Random(1)
    play(undisturbed, HALF, 7, luck=luck)
    resumed = frontier(seed=99)
    resumed.load_state_dict(undisturbed.state_dict())
    expected = play(undisturbed, HALF, 7, first_step=8, luck=random.Random(2))
    assert play(resumed, HALF, 7, first_step=8, luck=random.Random(2)) == expected
    assert resumed.state_dict() == undisturbed.state_dict()


def test_a_state_of_other_tasks_fits_those_that_are_there():
    before = frontier()
    play(before, dict.fromkeys(TASKS, 0.5), 5)
    after = frontier(tasks=["task-9", "new"])
    after.load_state_dict(before.state_dict())
    estimates = {estimate.task_id: estimate for estimate in after.changed()}
    assert estimates["task-9"].drawn > 0 and estimates["new"].drawn == 0
    after.record(9, "task-0", 1, 1)
    assert after.changed() == []


def test_what_changed_is_told_once_and_at_first_it_is_everything():
    sampling = frontier()
    assert [estimate.task_id for estimate in sampling.changed()] == TASKS
    drawn = sampling.draw()
    sampling.record(1, "task-4", 1, 3)
    changed = sampling.changed()
    assert {estimate.task_id for estimate in changed} == {drawn, "task-4"}
    assert sampling.changed() == []
    [played] = [estimate for estimate in changed if estimate.task_id == "task-4"]
    assert played.rate == pytest.approx(1.5 / 5) and played.low < played.rate < played.high


def test_metrics_say_what_is_gained_over_drawing_all_alike():
    sampling = frontier()
    at_first = sampling.metrics()
    assert at_first["frontier/expected_informative"] == pytest.approx(at_first["frontier/expected_uniform"])
    assert at_first["frontier/tasks_unseen"] == 10 and at_first["frontier/effective_tasks"] == pytest.approx(10)
    play(sampling, MOSTLY_SURE, 40)
    later = sampling.metrics()
    assert later["frontier/expected_informative"] > 1.3 * later["frontier/expected_uniform"]
    assert [later[f"frontier/tasks_{kind}"] for kind in ("unseen", "failing", "solved")] == [0, 4, 4]
    assert 2 < later["frontier/effective_tasks"] < 9
