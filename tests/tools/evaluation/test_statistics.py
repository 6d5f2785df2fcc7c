"""Success, its interval, pass@k: against numbers worked by hand, and by simulation."""

import itertools
import random
from statistics import fmean

import pytest

from arpo_verl.tools.evaluation.paired import t_quantile
from arpo_verl.tools.evaluation.results import FailedTrial, Result
from arpo_verl.tools.evaluation.statistics import (
    pass_at_k,
    passes,
    success_interval,
    summarize,
)
from arpo_verl.types import StopReason


def result(task_id, run, success, turns=4, stop_reason=StopReason.FINISHED):
    return Result(task_id, "os", run, 15, success, turns, stop_reason, "step_000000/x")


def test_each_task_counts_the_same_and_what_failed_is_told_and_never_scored():
    results = [result("a", 0, 1.0, 3), result("a", 1, 0.0, 6, StopReason.PARSE_ERROR), result("a", 2, 0.0)]
    results += [result("a", 3, 1.0), result("b", 1, 1.0, 15), result("z", 0, 0.0)]
    faults = [FailedTrial(task_id, 2, 15, "DesktopLostError", "gone") for task_id in ("b", "z")]
    summary = summarize(["a", "b", "c"], results, faults)
    assert (summary.success, summary.tasks, summary.unscored) == (0.75, 2, 1)
    assert (summary.runs, summary.fewest_runs, summary.most_runs, summary.faults) == (5, 1, 4, 1)
    assert (summary.turns, summary.format_errors) == (6.4, 1)


def test_nothing_scored_is_no_figure_and_one_task_has_no_interval():
    summary = summarize(["a"], [])
    assert (summary.success, summary.interval, summary.turns, summary.pass_at_k) == (None, None, None, ())
    assert (summary.unscored, summary.runs, summary.most_runs) == (1, 0, 0)
    assert success_interval([[1.0, 0.0, 1.0]]) is None


def test_a_t_quantile_is_that_of_the_tables():
    known = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 31: 2.040, 120: 1.980}
    assert {n: t_quantile(n) for n in known} == pytest.approx(known, abs=6e-3)


def test_nothing_solved_is_not_certainly_nothing():
    low, high = success_interval([[0.0] * 8] * 32)
    assert (low, high) == (0.0, pytest.approx(0.115, abs=1e-3))  # Wilson's of 0 in 32, with t for z
    assert success_interval([[1.0] * 8] * 32) == pytest.approx((1 - high, 1.0))
    _, once = success_interval([[0.0] * 8] * 31 + [[0.0] * 7 + [1.0]])
    assert 0.08 < once < 0.13  # one success more does not make it surer


# Rates of tasks: spread wide, mostly unsolved, nearly all unsolved, all alike, all or nothing. With the true mean.
DISTRIBUTIONS = {
    "wide": (lambda rng: rng.betavariate(0.5, 0.5), 0.5),
    "hard": (lambda rng: rng.betavariate(0.1, 0.9), 0.1),
    "rare": (lambda rng: rng.betavariate(0.05, 2), 0.05 / 2.05),
    "alike": (lambda rng: 0.5, 0.5),
    "some": (lambda rng: float(rng.random() < 0.05), 0.05),
}


@pytest.mark.parametrize(("tasks", "runs"), [(8, 4), (32, 8)])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_interval_has_the_true_mean_in_it_in_95_of_100_evaluations(name, tasks, runs):
    draw, mean = DISTRIBUTIONS[name]
    rng = random.Random(f"{name}/{tasks}")
    inside, repeats = 0, 400
    for _ in range(repeats):
        rates = [draw(rng) for _ in range(tasks)]
        low, high = success_interval([[float(rng.random() < rate) for _ in range(runs)] for rate in rates])
        inside += low <= mean <= high
    # 0.95 less two standard errors of so many repeats.
    assert inside / repeats >= 0.928


def test_runs_of_a_task_are_not_taken_for_tasks():
    alike = success_interval([[0.0, 1.0] * 4] * 16)
    all_or_nothing = success_interval([[0.0] * 8] * 8 + [[1.0] * 8] * 8)
    assert all_or_nothing[1] - all_or_nothing[0] > 1.5 * (alike[1] - alike[0])


@pytest.mark.parametrize("scores", [[[0.5]] * 4, [[1.0], [0.0]], [[0.25, 0.75], [1.0]]])
def test_an_interval_is_of_shares(scores):
    low, high = success_interval(scores)
    assert 0 <= low <= fmean(map(fmean, scores)) <= high <= 1


@pytest.mark.parametrize(("runs", "solved", "k"), [(8, 3, 2), (8, 0, 4), (8, 8, 1), (5, 1, 5), (6, 4, 3)])
def test_pass_at_k_is_the_share_of_draws_with_a_success(runs, solved, k):
    draws = list(itertools.combinations([True] * solved + [False] * (runs - solved), k))
    assert pass_at_k(runs, solved, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_is_over_the_tasks_that_have_k_runs():
    found = passes([[1.0, 0.0, 0.0, 0.0], [0.0] * 4, [1.0, 0.0]])
    assert [(one.k, one.tasks) for one in found] == [(2, 3), (4, 2)]
    assert [one.value for one in found] == pytest.approx([(0.5 + 0 + 1) / 3, 0.5])
    assert passes([[1.0], [0.0]]) == passes([]) == ()
    assert [passes(parts)[0].value for parts in ([[0.9, 0.5]], [[0.9, 1.0], [0.5, 0.0]])] == [0, 0.5], "not solved"
    assert [one.k for one in passes([[1.0] * 16, [0.0] * 4, [0.0] * 7])] == [2, 4]  # 8 and 16 are one task's alone
