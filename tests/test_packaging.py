"""What goes out: both archives build without a warning, and hold what a user and a packager need."""

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from arpo_verl.versions import __version__

pytest.importorskip("build")
pytest.importorskip("twine")

pytestmark = pytest.mark.release
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the archives, the wheel built from the other one, and what the build said."""
    folder = tmp_path_factory.mktemp("dist")
    # Images often set the variable, and setuptools warns that it compiles nothing.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-W", "error::DeprecationWarning", "-m", "build", "--no-isolation", "--outdir", folder]
    done = subprocess.run([*command, ROOT], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder, (done.stdout + done.stderr).lower()


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(next(built[0].glob("*.whl"))) as archive:
        yield archive


def files_of(folder):
    # Of bytecode also what another process is just writing, under a name of its own.
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in paths}


def test_the_archives_build_without_a_warning_and_pass_twine(built):
    folder, said = built
    assert not [line for line in said.splitlines() if "warning:" in line or "deprecat" in line]
    command = [sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir()]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0 and checked.stdout.count("PASSED") == 2, checked.stdout


def test_the_wheel_holds_every_file_of_the_package_and_every_recipe(wheel):
    package = {path for path in files_of("arpo_verl") if not path.startswith("arpo_verl/recipes/")}
    expected = package | {f"arpo_verl/{path}" for path in files_of("recipes")}
    assert expected == {name for name in wheel.namelist() if ".dist-info/" not in name}
    for kept in (
        "recipes/embedded.yaml",
        "recipes/baseline/grpo.yaml",
        "tasks/embedded/dialog-confirm-yes.json",
        "tasks/embedded_long/form-guests-eight.json",
        "tasks/expert.json",
        "tasks/expert_long.json",
        "desktop/guest/skeleton/.config/openbox/rc.xml",
        "desktop/guest/programs/google-chrome",
        "viewer/assets/vendor/preact/preact.min.umd.js",
        "viewer/report/templates/report.html.j2",
    ):
        assert f"arpo_verl/{kept}" in expected


def test_the_wheel_says_its_version_and_whose_code_it_holds(wheel):
    folder = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
    metadata = HeaderParser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    licences = {"LICENSE", *(path for path in files_of("arpo_verl/viewer/assets/vendor") if path.endswith("LICENSE"))}
    assert len(licences) == 4 and set(metadata.get_all("License-File")) == licences
    for path in licences:
        assert wheel.read(f"{folder}/licenses/{path}") == (ROOT / path).read_bytes()


def test_from_the_source_archive_the_tests_can_run(built):
    with tarfile.open(next(built[0].glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = [files_of(folder) for folder in ("tests", "recipes", "benchmarks", "docs")]
    assert (
        set().union(
            *folders, {"setup.py", "pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md"}
        )
        <= names
    )
