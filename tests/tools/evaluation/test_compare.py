"""Two evaluations, paired by task."""

import random
import re

import pytest

from arpo_verl.errors import ConfigError
from arpo_verl.tools.evaluation.compare import compare
from arpo_verl.tools.evaluation.paired import sign_flip_test
from arpo_verl.tools.evaluation.results import Evaluated, Result
from arpo_verl.types import StopReason


def evaluated(scores, budgets=(15,), **settings):
    """`scores`: of each task's runs."""
    results = [
        Result(task_id, "os", run, budget, score, 3, StopReason.FINISHED, "step_000000/x")
        for task_id, runs in scores.items()
        for budget in budgets
        for run, score in enumerate(runs)
    ]
    return Evaluated(tuple(results), (), {"max_steps": list(budgets), **settings}, {id: "os" for id in scores})


def test_tasks_are_paired():
    first = evaluated({"a": [0.0, 0.0], "b": [1.0, 0.0], "c": [1.0]})
    second = evaluated({"c": [0.0, 0.0, 1.0, 1.0], "a": [1.0], "b": [1.0, 1.0]})
    (pairing,) = compare(first, second).pairings
    assert (pairing.tasks, pairing.first, pairing.better, pairing.worse) == (3, 0.5, 2, 1)
    assert pairing.second == pytest.approx(2.5 / 3)
    assert pairing.difference == pytest.approx((1 + 0.5 - 0.5) / 3)
    assert pairing.p_value == pytest.approx(6 / 8)  # of the eight signings, |sum| >= 1: all but the two with |sum| 0


def test_a_difference_on_every_task_is_told():
    first = evaluated({f"t{i}": [0.0, 0.0, 1.0, 0.0] for i in range(16)}, policy={"model": "m"})
    second = evaluated({f"t{i}": [1.0, 0.0, 1.0, 1.0] for i in range(16)}, policy={"model": "n"})
    told = compare(first, second)
    (pairing,) = told.pairings
    assert pairing.told_apart and pairing.interval[0] > 0.3
    assert "+50.0 points" in str(told) and "the second is better." in str(told)
    assert "Settings that differ: policy" in str(told)
    assert "the second is worse." in str(compare(second, first))


def test_the_same_is_not_told_apart_and_not_certainly_equal():
    one = evaluated({f"t{i}": [1.0, 0.0] for i in range(12)})
    (pairing,) = compare(one, one).pairings
    assert (pairing.difference, pairing.p_value) == (0, 1)
    assert pairing.interval[0] < 0 < pairing.interval[1]
    assert str(compare(one, one)).endswith("no clear difference.")


def test_few_tasks_prove_nothing():
    first, second = evaluated({f"t{i}": [0.0] * 8 for i in range(4)}), evaluated({f"t{i}": [1.0] * 8 for i in range(4)})
    (pairing,) = compare(first, second).pairings
    assert pairing.p_value == 2 / 16 and not pairing.told_apart
    (pairing,) = compare(evaluated({"a": [0.0]}), evaluated({"a": [1.0]})).pairings
    assert pairing.interval is None and not pairing.told_apart


A, Z = evaluated({"a": [1.0]}), evaluated({"z": [1.0]})
LONGER = evaluated({"a": [1.0]}, budgets=(50,))
BOTH = evaluated({"a": [1.0], "b": [1.0]}, budgets=(15, 50))
LEFT_OUT = [
    (BOTH, evaluated({"b": [1.0], "c": [1.0], "d": [0.0]}), "at most 50 turns: the first evaluation alone"),
    (BOTH, evaluated({"b": [1.0], "c": [1.0], "d": [0.0]}), "at most 15 turns: 1 tasks (a) of the first alone"),
    (BOTH, evaluated({"b": [1.0], "c": [1.0], "d": [0.0]}), "at most 15 turns: 2 tasks (c, d) of the second alone"),
    (A, LONGER, "at most 15 turns: the first evaluation alone"),
    (A, Z, "1 tasks (z) of the second alone"),
    (A, evaluated({}), "the first evaluation alone"),
]


@pytest.mark.parametrize(("first", "second", "words"), LEFT_OUT)
def test_what_only_one_has_is_said_and_nothing_in_common_is_refused(first, second, words):
    if first is BOTH:
        assert words in str(compare(first, second))
    else:
        with pytest.raises(ConfigError, match=re.escape(words)):
            compare(first, second)


@pytest.mark.parametrize("tasks", [8, 24])
def test_one_policy_is_told_from_itself_in_at_most_5_of_100_comparisons(tasks):
    rng = random.Random(tasks)
    told, repeats = 0, 200
    for _ in range(repeats):
        rates = {f"t{i}": rng.betavariate(0.5, 0.5) for i in range(tasks)}
        pair = [evaluated({id: [float(rng.random() < r) for _ in range(4)] for id, r in rates.items()}) for _ in "ab"]
        told += compare(*pair).pairings[0].told_apart
    assert told / repeats <= 0.08  # 0.05 and two standard errors


def test_drawn_signs_come_to_what_all_signs_do():
    rng = random.Random(3)
    values = [rng.choice([-0.25, 0.25, 0.5]) for _ in range(12)]
    exact = sign_flip_test(values)
    assert sign_flip_test([*values, 1e-12]) == pytest.approx(exact, abs=0.015)  # 13 of them: drawn
