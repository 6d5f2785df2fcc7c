"""OSWorld's own tasks on the embedded desktop: doing nothing scores 0, a scripted solution 1, FAIL what it should."""

import pytest
from support.osworld import harness
from support.osworld.documents import keep_documents
from support.osworld.solutions import gimp, libreoffice, operating_system, vlc

pytestmark = pytest.mark.desktop
DOMAINS = {"gimp": gimp, "libreoffice_impress": libreoffice, "os": operating_system, "vlc": vlc}
SOLUTIONS = {f"{domain}/{name}": run for domain, module in DOMAINS.items() for name, run in module.SOLUTIONS.items()}
OF_DOWNLOADS = {
    name: run for module in (gimp, libreoffice, vlc) for name, run in module.WITH_DOCUMENTS_OF_OUR_OWN.items()
}
INFEASIBLE = ("gimp/fbb548ca", "os/4783cc41", "os/b3d4a89c", "os/c288e301", "vlc/cb130f0d")


@pytest.mark.release
@pytest.mark.parametrize("name", INFEASIBLE)
def test_saying_fail_scores_one(environment, task, name):
    assert harness.run_fail(environment, task(*name.split("/"))) == 1.0


@pytest.mark.parametrize("name", harness.released_but(SOLUTIONS, "gimp/d52d6308", "os/bedcedc4", "vlc/a5bbbcd5"))
def test_doing_nothing_scores_zero_and_the_solution_one(environment, task, name):
    assert harness.scores(environment, task(*name.split("/")), SOLUTIONS[name]) == (0.0, 1.0)


@pytest.mark.parametrize("name", harness.released_but(OF_DOWNLOADS, "libreoffice_writer"))
def test_a_task_whose_downloads_are_kept_runs_without_the_internet(environment, task, downloads, name):
    """With documents of our own in the download's place."""
    found = task(*name.split("/"))
    keep_documents(downloads, found)
    assert harness.scores(environment, found, OF_DOWNLOADS[name]) == (0.0, 1.0)
