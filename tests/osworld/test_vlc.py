"""OSWorld's domain `vlc` on the embedded desktop."""

import pytest
from support.osworld import harness
from support.osworld.solutions.vlc import SOLUTIONS

pytestmark = pytest.mark.desktop
INFEASIBLE = ("cb130f0d",)


@pytest.mark.release
@pytest.mark.parametrize("task_id", INFEASIBLE)
def test_saying_fail_scores_one(environment, task, task_id):
    assert harness.run_fail(environment, task("vlc", task_id)) == 1.0


@pytest.mark.parametrize("task_id", harness.released_but(SOLUTIONS, "a5bbbcd5"))
def test_the_solution_scores_one(environment, task, task_id):
    assert harness.run_solution(environment, task("vlc", task_id), SOLUTIONS[task_id]) == 1.0


@pytest.mark.release
@pytest.mark.parametrize("task_id", SOLUTIONS)
def test_doing_nothing_scores_zero(environment, task, task_id):
    assert harness.run_nothing(environment, task("vlc", task_id)) == 0.0
