"""OSWorld's domains `libreoffice_*` on the embedded desktop."""

import pytest
from support.osworld import harness
from support.osworld.solutions.libreoffice import SOLUTIONS

from arpo_verl.desktop.programs import has_program

PROGRAMS = ("libreoffice", "localc", "loimpress", "lowriter")
pytestmark = [
    pytest.mark.desktop,
    pytest.mark.skipif(not all(map(has_program, PROGRAMS)), reason="LibreOffice is not installed"),
]


@pytest.mark.release
@pytest.mark.parametrize("task_id", SOLUTIONS)
def test_doing_nothing_scores_zero_and_the_solution_one(environment, task, task_id):
    assert harness.scores(environment, task("libreoffice_impress", task_id), SOLUTIONS[task_id]) == (0.0, 1.0)
