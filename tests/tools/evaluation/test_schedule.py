"""What `evaluate` plays next."""

from arpo_verl.tools.evaluation.results import FailedTrial, Result, Trial
from arpo_verl.tools.evaluation.schedule import EachRun
from arpo_verl.types import StopReason


def result(task_id, run, budget):
    return Result(task_id, "", run, budget, 1.0, 3, StopReason.FINISHED, "step_000000/x")


def test_runs_go_round_at_the_largest_budget():
    scheduler = EachRun(["a", "b"], 2, [50, 15])
    assert scheduler.expected == 4
    assert scheduler.next_trials(3) == [Trial("a", 0, 50), Trial("b", 0, 50), Trial("a", 1, 50)]
    assert scheduler.next_trials(3) == [Trial("b", 1, 50)]
    assert scheduler.next_trials(3) == []


def test_a_budget_that_an_episode_does_not_tell_is_played_apart():
    scheduler = EachRun(["a"], 1, [15, 50, 100])
    (trial,) = scheduler.next_trials(8)
    scheduler.finished(trial, (result("a", 0, 50), result("a", 0, 100)))
    (apart,) = scheduler.next_trials(8)
    assert apart == Trial("a", 0, 15)
    for outcome in ((result("a", 0, 15),), FailedTrial("a", 0, 100, "DesktopLostError", "gone")):
        scheduler.finished(apart, outcome)
        assert (scheduler.next_trials(8), scheduler.expected) == ([], 2)
