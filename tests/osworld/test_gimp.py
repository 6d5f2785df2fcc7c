"""OSWorld's domain `gimp` on the embedded desktop."""

import harness
import pytest
from documents import keep_documents
from solutions.gimp import SOLUTIONS, WITH_DOCUMENTS_OF_OUR_OWN

pytestmark = pytest.mark.desktop
INFEASIBLE = ("fbb548ca",)


@pytest.mark.parametrize("task_id", INFEASIBLE)
def test_saying_fail_scores_one(environment, task, task_id):
    assert harness.run_fail(environment, task("gimp", task_id)) == 1.0


@pytest.mark.parametrize("task_id", SOLUTIONS)
def test_doing_nothing_scores_zero_and_the_solution_one(environment, task, task_id):
    assert harness.run_nothing(environment, task("gimp", task_id)) == 0.0
    assert harness.run_solution(environment, task("gimp", task_id), SOLUTIONS[task_id]) == 1.0


@pytest.mark.parametrize("name", WITH_DOCUMENTS_OF_OUR_OWN)
def test_a_task_whose_downloads_are_kept_runs_without_the_internet(environment, task, downloads, name):
    found = task(*name.split("/"))
    keep_documents(downloads, found)
    assert harness.run_nothing(environment, found) == 0.0
    assert harness.run_solution(environment, found, WITH_DOCUMENTS_OF_OUR_OWN[name]) == 1.0
