"""OSWorld's domain `os` on the embedded desktop."""

import pytest
from support.osworld import harness
from support.osworld.solutions.operating_system import SOLUTIONS

pytestmark = pytest.mark.desktop
INFEASIBLE = ("4783cc41", "b3d4a89c", "c288e301")


@pytest.mark.release
@pytest.mark.parametrize("task_id", INFEASIBLE)
def test_saying_fail_scores_one(environment, task, task_id):
    assert harness.run_fail(environment, task("os", task_id)) == 1.0


@pytest.mark.parametrize("task_id", harness.released_but(SOLUTIONS, "bedcedc4"))
def test_the_solution_scores_one(environment, task, task_id):
    assert harness.run_solution(environment, task("os", task_id), SOLUTIONS[task_id]) == 1.0


@pytest.mark.release
@pytest.mark.parametrize("task_id", SOLUTIONS)
def test_doing_nothing_scores_zero(environment, task, task_id):
    assert harness.run_nothing(environment, task("os", task_id)) == 0.0
