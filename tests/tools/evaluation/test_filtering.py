"""Tasks are played no oftener than their fate takes."""

import random

import pytest

from arpo_verl.errors import ConfigError
from arpo_verl.tools.evaluation.filtering import MOST_FAULTS, Fate, FilterRuns, count_runs, decide, outlook
from arpo_verl.tools.evaluation.keep_rule import KeepRule
from arpo_verl.tools.evaluation.results import Evaluated, FailedTrial, Result
from arpo_verl.tools.evaluation.task_rates import TaskRates
from arpo_verl.types import StopReason

SOME = KeepRule.parse("1 <= successes <= 15", 16)


@pytest.mark.parametrize(
    ("text", "runs", "low", "high"),
    [
        ("1 <= successes <= 15", 16, 1, 15),
        ("0<successes<16", 16, 1, 15),
        ("successes >= 1", 16, 1, 16),
        ("15 >= successes", 16, 0, 15),
        ("successes = 3", 8, 3, 3),
        ("0.1 <= rate <= 0.9", 16, 2, 14),
        ("0.1 <= rate <= 0.9", 10, 1, 9),  # 0.1 * 10 is 1, by no rounding
        ("rate > 0.5", 4, 3, 4),
        ("rate < 0.5", 4, 0, 1),
        ("15 >= successes >= 1", 16, 1, 15),
    ],
)
def test_a_rule_is_a_range_of_successes(text, runs, low, high):
    assert KeepRule.parse(text, runs) == KeepRule(low, high, runs)


NO_RANGES = ("", "successes", "1 <= wins", "__import__('os').system('x')", "1 <= successes <= 15 or True")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "must be a range of successes") for text in (*NO_RANGES, "-1 <= successes")),
        ("17 <= successes", "up to --runs=16"),
        ("1 <= successes <= 17", "up to --runs=16"),
        ("1 <= rate <= 15", "up to 1, as a rate"),
        ("rate > 1", "keeps no task"),
        ("5 <= successes <= 2", "keeps no task"),
        ("successes = 1.5", "keeps no task"),
        ("0 <= rate <= 1", "keeps all tasks, with 0 to 16 successes"),
    ],
)
def test_another_rule_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        KeepRule.parse(text, 16)


@pytest.mark.parametrize("rule", [KeepRule(1, 3, 4), KeepRule(0, 2, 4), KeepRule(2, 4, 4), KeepRule(2, 2, 4)])
def test_a_fate_is_settled_exactly_when_no_other_run_changes_it(rule):
    for played in range(5):
        for solved in range(played + 1):
            ends = {rule.low <= total <= rule.high for total in range(solved, solved + 4 - played + 1)}
            assert rule.verdict(solved, played) == (ends.pop() if len(ends) == 1 else None)


def test_there_may_be_any_number_of_runs():
    assert TaskRates().chance_kept("a", KeepRule(1, 2999, 3000)) == pytest.approx(0.55, abs=0.1)


def result(trial, success):
    return Result(trial.task_id, "", trial.run, 15, float(success), 3, StopReason.FINISHED, "step_000000/x")


def play(outcomes, rule, error=0.0, desktops=2, rng=None):
    """Run the filter on tasks with these outcomes; episodes end in the order in which they begin, or a random one.
    A run of None is failed by infrastructure."""
    runs = FilterRuns(list(outcomes), rule, 15, error)
    running, results, faults, most_at_once = [], [], [], 0
    while True:
        running += runs.next_trials(desktops - len(running))
        most_at_once = max(most_at_once, len(running))
        if not running:
            break
        trial = running.pop(rng.randrange(len(running)) if rng else 0)
        success = outcomes[trial.task_id][trial.run]
        if success is None:
            faults.append(FailedTrial(trial.task_id, trial.run, 15, "DesktopLostError", "gone"))
            runs.finished(trial, faults[-1])
        else:
            results.append(result(trial, success))
            runs.finished(trial, (results[-1],))
    assert most_at_once <= desktops
    assert runs.expected == len(results) + len(faults)
    results.sort(key=lambda one: (one.task_id, one.run))
    evaluated = Evaluated(tuple(results), tuple(faults), {}, dict.fromkeys(outcomes, ""))
    decided = decide(count_runs(evaluated, rule, 15), outcomes, faults, rule, error)
    return len(results) + len(faults), {task.task_id: task for task in decided}


def test_a_task_is_played_until_it_is_settled():
    outcomes = {"mixed": [1, 0] * 8, "never": [0] * 16, "always": [1] * 16, "late": [1] * 15 + [0]}
    episodes, decided = play(outcomes, SOME, desktops=1)
    assert episodes == 2 + 3 * 16
    assert {id: task.fate for id, task in decided.items()} == {
        "mixed": Fate.KEPT,
        "never": Fate.TOO_FEW,
        "always": Fate.TOO_MANY,
        "late": Fate.KEPT,
    }
    assert decided["mixed"].runs == 2 and all(task.doubt == 0 for task in decided.values())


@pytest.mark.parametrize("seed", range(20))
def test_without_an_error_the_list_is_that_of_all_runs(seed):
    rng = random.Random(seed)
    rule = rng.choice([SOME, KeepRule(4, 12, 16), KeepRule(0, 8, 16), KeepRule(1, 16, 16)])
    rates = {f"t{i}": rng.betavariate(0.4, 0.6) for i in range(12)}
    outcomes = {id: [int(rng.random() < rate) for _ in range(16)] for id, rate in rates.items()}
    episodes, decided = play(outcomes, rule, desktops=4, rng=rng)
    kept = {id for id, task in decided.items() if task.fate is Fate.KEPT}
    assert kept == {id for id, runs in outcomes.items() if rule.low <= sum(runs) <= rule.high}
    assert episodes < 12 * 16


def test_with_an_error_the_doubt_told_is_the_share_of_lists_that_differ():
    rng = random.Random(5)
    doubts, differ, saved, tasks = 0.0, 0, 0.0, 0
    for _ in range(12):
        rates = {f"t{i}": rng.betavariate(0.1, 0.6) for i in range(32)}
        outcomes = {id: [int(rng.random() < rate) for _ in range(16)] for id, rate in rates.items()}
        episodes, decided = play(outcomes, SOME, error=0.05, rng=rng)
        exact, _ = play(outcomes, SOME, rng=rng)
        saved += 1 - episodes / exact
        doubts += sum(task.doubt for task in decided.values())
        differ += sum((decided[id].fate is Fate.KEPT) != (1 <= sum(runs) <= 15) for id, runs in outcomes.items())
        tasks += 32
    assert saved / 12 > 0.2
    assert differ / tasks < 0.05
    assert doubts / tasks == pytest.approx(differ / tasks, abs=0.015)


def test_a_fault_is_played_anew_and_never_counts():
    outcomes = {"a": [None, 0, None, 1], "b": [None] * 12, "c": [0, None, None, None, None, 0, 0]}
    episodes, decided = play(outcomes, KeepRule(1, 3, 4), desktops=1)
    assert {id: (one.fate, one.solved, one.runs) for id, one in decided.items()} == {
        "a": (Fate.KEPT, 1, 2),
        "b": (Fate.UNSETTLED, 0, 0),
        "c": (Fate.UNSETTLED, 0, 3),
    }
    assert episodes == 4 + 2 * (4 + MOST_FAULTS)


@pytest.mark.parametrize(("failed", "fate"), [(MOST_FAULTS, Fate.TOO_FEW), (MOST_FAULTS + 1, Fate.UNSETTLED)])
def test_a_task_whose_failed_runs_were_played_anew_stays_settled_though_its_doubt_grew(failed, fate):
    rates = TaskRates()
    for _ in range(10):
        rates.tell("a", False)
    faults = [FailedTrial("a", run, 15, "DesktopLostError", "gone") for run in range(10, 10 + failed)]
    (task,) = decide(rates, ["a"], faults, SOME, error=0.001)
    assert task.doubt > 0.001 and task.fate is fate


def test_rates_are_learnt_from_the_other_tasks():
    """Ten failures say less where half of the tasks succeed now and then than where none ever does."""
    chances = []
    for others in (0, 3):
        rates = TaskRates()
        for number in range(20):
            for run in range(10):
                rates.tell(f"t{number}", run < others)
        for _ in range(10):
            rates.tell("asked", False)
        chances.append(rates.chance_kept("asked", SOME))
    assert chances[0] < 0.02 < 0.1 < chances[1]


def test_the_outlook_is_that_of_groups_drawn_from_such_tasks():
    rng = random.Random(7)
    true = {f"t{i}": rng.betavariate(0.5, 0.8) for i in range(400)}
    rates = TaskRates()
    for task_id, rate in true.items():
        for _ in range(16):
            rates.tell(task_id, rng.random() < rate)
    seen = outlook(rates, list(true), 8)
    failed = sum((1 - rate) ** 8 for rate in true.values()) / 400
    solved = sum(rate**8 for rate in true.values()) / 400
    assert (seen.all_failed, seen.all_solved) == (pytest.approx(failed, abs=0.02), pytest.approx(solved, abs=0.02))
    assert seen.informative == pytest.approx(1 - failed - solved, abs=0.02)
    assert seen.with_replay == pytest.approx(1 - solved, abs=0.02)
