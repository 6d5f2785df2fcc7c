"""Both archives build without a warning and hold what a user and a packager need; the wheel alone runs."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import requests
from support import take_interrupts
from support.pythons import find_python
from support.viewer_run import ViewerRun

from arpo_verl.tools.cli.main import COMMANDS
from arpo_verl.versions import __version__, install_extra

pytest.importorskip("build")
pytest.importorskip("twine")

pytestmark = pytest.mark.release
ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "setup.py").read_text())
TOO_OLD = ["3.7", "3.8", "3.9", "3.10"]
NESTED = ["recipes list", "recipes copy", "vm build", "vm template", "vm check"]
NESTED += ["replay inspect", "replay export", "replay merge", "replay seed"]


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


def test_the_wheel_says_its_version_and_whose_code_it_holds(wheel):
    folder = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
    metadata = HeaderParser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    licences = {
        "LICENSE",
        *(path for path in files_of("arpo_verl/tools/viewer/assets/vendor") if path.endswith("LICENSE")),
    }
    assert len(licences) == 4 and set(metadata.get_all("License-File")) == licences
    for path in licences:
        assert wheel.read(f"{folder}/licenses/{path}") == (ROOT / path).read_bytes()


def test_from_the_source_archive_the_tests_can_run(built):
    with tarfile.open(next(built[0].glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = [files_of(folder) for folder in ("tests", "recipes", "benchmarks", "docs")]
    files = {"setup.py", "pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md"}
    assert files.union(*folders) <= names


def run_alone(command, folder):
    """A command outside the checkout, without anything that leads back to it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module", params=PYTHONS)
def bare(request, built, tmp_path_factory):
    """The command of the wheel, installed with its requirements and nothing else into an empty environment."""
    python = find_python(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} is here; what can be read off its sources and requirements is checked")
    venv, wheel = tmp_path_factory.mktemp("bare"), next(built[0].glob("*.whl"))
    subprocess.run([UV, "venv", "--quiet", "--clear", "--python", python, venv], check=True)
    subprocess.run([UV, "pip", "install", "--quiet", "--python", venv / "bin" / "python", wheel], check=True)
    return venv / "bin" / "arpo-verl"


@pytest.fixture
def run_dir(tmp_path):
    """A run's folder, copied from where it was trained."""
    run = ViewerRun(tmp_path / "a-run")
    for step in (1, 2):
        run.episode(step)
        run.metrics(step, **{"episode/success": 0.5, "timing_s/step": 1.0})
    return run.path


def test_the_wheel_alone_prints_its_version_and_every_help(bare, tmp_path):
    assert run_alone([bare, "--version"], tmp_path).stdout == f"arpo-verl {__version__}\n"
    for command in ("", *COMMANDS, *NESTED):
        done = run_alone([bare, *command.split(), "--help"], tmp_path)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"usage: arpo-verl {command}"), done


def test_the_wheel_alone_shows_a_run(bare, run_dir, tmp_path):
    for command in (["summary", run_dir], ["report", run_dir], ["view", run_dir, "--export", "out"]):
        done = run_alone([bare, *command], tmp_path)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done
    assert (run_dir / "report.html").is_file() and (tmp_path / "out" / "index.html").is_file()
    viewer = subprocess.Popen(
        [bare, "view", run_dir, "--port", "0"], stdout=subprocess.PIPE, text=True, preexec_fn=take_interrupts
    )
    url = re.search(r"http://\S+", viewer.stdout.readline())[0]
    assert requests.get(url + "api/run", timeout=60).json()["num_episodes"] == 2
    viewer.send_signal(signal.SIGINT)
    assert viewer.wait(timeout=60) == 0


def test_the_wheel_alone_checks_this_machine_and_has_the_recipes(bare, tmp_path):
    done = run_alone([bare, "doctor"], tmp_path)
    assert done.returncode == 1 and "[FAIL] verl: not installed" in done.stdout and not done.stderr, done
    assert (Path(run_alone([bare, "recipes"], tmp_path).stdout.strip()) / "embedded.yaml").is_file()
    assert "embedded" in run_alone([bare, "recipes", "list"], tmp_path).stdout
    assert "32 tasks: embedded 32\n" in run_alone([bare, "tasks", "embedded"], tmp_path).stdout
    assert run_alone([bare, "recipes", "copy", "embedded", "mine"], tmp_path).returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        "evaluate --endpoint http://127.0.0.1:1/v1 --tasks embedded --out OUT",
        "filter-tasks --recipe embedded --model MODEL --out OUT",
        "replay seed RUN --recipe RECIPE.yaml --out OUT",
    ],
)
def test_what_needs_more_than_the_wheel_names_one_extra_in_one_sentence(bare, tmp_path, command):
    done = run_alone([bare, *command.split()], tmp_path)
    needs = rf"arpo-verl: this needs \w+, which the extra `trainer` brings; {re.escape(install_extra('trainer'))}\n"
    assert done.returncode == 2 and re.fullmatch(needs, done.stderr), done


def test_a_recipe_is_read_with_little_more_than_the_wheel(bare, tmp_path):
    done = run_alone([bare, "doctor", "--recipe", "embedded"], tmp_path)
    assert "this needs hydra-core, which the extra `recipes` brings, and veRL's files; " in done.stderr
    assert done.stderr.endswith(f"; {install_extra('recipes')} && pip install --no-deps verl==0.9.1\n")


@pytest.mark.parametrize("command", ["try calculator-to-dialog --expert", "fetch-vm", "vm check NO.qcow2"])
def test_what_needs_a_desktop_says_in_one_sentence_what_is_missing(bare, tmp_path, command):
    done = run_alone([bare, *command.split()], tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("arpo-verl: ") and done.stderr.count("\n") == 1, done


@pytest.mark.parametrize("version", PYTHONS)
def test_a_python_that_is_not_here_resolves_and_has_every_name_that_is_used(version):
    if find_python(version) is not None:
        pytest.skip("it is here, and the wheel runs on it")
    resolve = [UV, "pip", "compile", "--quiet", "--python-version", version, "setup.py"]
    subprocess.run(resolve, cwd=ROOT, check=True, capture_output=True)
    # Syntax, and the standard library's names of that version.
    checked = subprocess.run([sys.executable, "-m", "mypy", "--python-version", version], cwd=ROOT, capture_output=True)
    assert checked.returncode == 0, checked.stdout.decode()


@pytest.mark.parametrize("version", TOO_OLD)
def test_an_older_python_is_told_so_in_one_sentence(built, tmp_path, version):
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} is here")
    env = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-m", "arpo_verl.tools.cli.main"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and f"arpo_verl needs Python 3.11 or newer, this is Python {version}." in last
    wheel = next(built[0].glob("*.whl"))
    refused = subprocess.run(
        [UV, "pip", "install", "--dry-run", "--python", python, wheel], capture_output=True, text=True
    )
    assert refused.returncode == 1 and "Python>=3.11" in refused.stderr
