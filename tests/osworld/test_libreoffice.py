"""OSWorld's domains `libreoffice_*` on the embedded desktop."""

import harness
import pytest
from documents import keep_documents
from solutions.libreoffice import SOLUTIONS, WITH_DOCUMENTS_OF_OUR_OWN

from arpo_verl.desktop.programs import has_program
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.tasks.validation import check_tasks_run_here

PROGRAMS = ("libreoffice", "localc", "loimpress", "lowriter")
pytestmark = [
    pytest.mark.desktop,
    pytest.mark.skipif(not all(map(has_program, PROGRAMS)), reason="LibreOffice is not installed"),
]


@pytest.mark.parametrize("task_id", SOLUTIONS)
def test_doing_nothing_scores_zero_and_the_solution_one(environment, task, task_id):
    assert harness.run_nothing(environment, task("libreoffice_impress", task_id)) == 0.0
    assert harness.run_solution(environment, task("libreoffice_impress", task_id), SOLUTIONS[task_id]) == 1.0


@pytest.mark.parametrize("name", WITH_DOCUMENTS_OF_OUR_OWN)
def test_a_task_whose_downloads_are_kept_runs_without_the_internet(environment, tasks_dir, downloads, name):
    task = harness.load(tasks_dir, *name.split("/"))
    keep_documents(downloads, task)
    check_tasks_run_here([task], EnvironmentConfig(cache_dir=str(downloads)))
    assert harness.run_nothing(environment, task) == 0.0
    assert harness.run_solution(environment, task, WITH_DOCUMENTS_OF_OUR_OWN[name]) == 1.0
