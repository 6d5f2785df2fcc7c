"""OSWorld's tasks that download a document, with documents of our own in the download's place."""

import pytest
from support.osworld import harness
from support.osworld.documents import keep_documents
from support.osworld.solutions import gimp, libreoffice, vlc

pytestmark = pytest.mark.desktop
SOLUTIONS = {name: run for module in (gimp, libreoffice, vlc) for name, run in module.WITH_DOCUMENTS_OF_OUR_OWN.items()}


@pytest.mark.parametrize("name", harness.released_but(SOLUTIONS, "libreoffice_writer"))
def test_a_task_whose_downloads_are_kept_runs_without_the_internet(environment, task, downloads, name):
    found = task(*name.split("/"))
    keep_documents(downloads, found)
    assert harness.scores(environment, found, SOLUTIONS[name]) == (0.0, 1.0)
