"""Two evaluations, paired by task."""

import random
import re
from dataclasses import replace

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


ALIKE = evaluated({f"t{i}": [1.0, 0.0] for i in range(12)})
FEW = [evaluated({f"t{i}": [score] * 8 for i in range(4)}) for score in (0.0, 1.0)]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (  # p: of the eight signings, |sum| >= 1 for all but the two with |sum| 0
            evaluated({"a": [0.0, 0.0], "b": [1.0, 0.0], "c": [1.0]}),
            evaluated({"c": [0.0, 0.0, 1.0, 1.0], "a": [1.0], "b": [1.0, 1.0]}),
            r"3 tasks of both: 50.0% and 83.3%, \+33.3 points \(.*; p = 0.750\); .* better on 2, worse on 1: no clear",
        ),
        (ALIKE, ALIKE, r"\+0.0 points \(95% interval -.* to \+.*; p = 1.000\).*: no clear difference\."),
        (*FEW, r"\+100.0 points \(95% interval .*; p = 0.125\).*: no clear difference\."),
        (evaluated({"a": [0.0]}), evaluated({"a": [1.0]}), r"\(no interval for one task; .*: no clear difference\."),
    ],
    ids=["pairs", "the same", "few", "one"],
)
def test_tasks_are_paired_and_few_prove_nothing(first, second, said):
    assert re.search(said, compare(first, second))


def test_a_difference_on_every_task_is_told():
    first = evaluated({f"t{i}": [0.0, 0.0, 1.0, 0.0] for i in range(16)}, policy={"model": "m"})
    second = evaluated({f"t{i}": [1.0, 0.0, 1.0, 1.0] for i in range(16)}, policy={"model": "n"})
    told = compare(first, second)
    assert "+50.0 points" in told and told.endswith("the second is better.") and "interval +43.1 to +56.9" in told
    assert "Settings that differ: policy" in told and "content" not in told
    changed = [replace(one, digests={"t1": "same", "t2": by}) for by, one in (("x", first), ("y", second))]
    assert "with another content: 1 tasks (t2)\n" in compare(*changed)
    assert compare(second, first).endswith("the second is worse.")


A, Z = evaluated({"a": [1.0]}), evaluated({"z": [1.0]})
LONGER = evaluated({"a": [1.0]}, budgets=(50,))
BOTH = evaluated({"a": [1.0], "b": [1.0]}, budgets=(15, 50))
LEFT_OUT = [
    (BOTH, evaluated({"b": [1.0], "c": [1.0], "d": [0.0]}), "at most 50 turns: 2 tasks (a, b) of the first alone"),
    (BOTH, evaluated({"b": [1.0], "c": [1.0], "d": [0.0]}), "at most 15 turns: 1 tasks (a) of the first alone"),
    (BOTH, evaluated({"b": [1.0], "c": [1.0], "d": [0.0]}), "at most 15 turns: 2 tasks (c, d) of the second alone"),
    (A, LONGER, "at most 15 turns: 1 tasks (a) of the first alone"),
    (A, Z, "1 tasks (z) of the second alone"),
    (A, evaluated({}), "1 tasks (a) of the first alone"),
]


@pytest.mark.parametrize(("first", "second", "words"), LEFT_OUT)
def test_what_only_one_has_is_said_and_nothing_in_common_is_refused(first, second, words):
    if first is BOTH:
        assert words in compare(first, second)
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
        told += "no clear difference" not in compare(*pair)
    assert told / repeats <= 0.08  # 0.05 and two standard errors


def test_drawn_signs_come_to_what_all_signs_do():
    rng = random.Random(3)
    values = [rng.choice([-0.25, 0.25, 0.5]) for _ in range(12)]
    exact = sign_flip_test(values)
    assert sign_flip_test([*values, 1e-12]) == pytest.approx(exact, abs=0.015)  # 13 of them: drawn
