"""OSWorld's task files, wherever they lie, and one embedded desktop per module to run them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.osworld import harness

from arpo_verl.desktops.embedded import packages
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment
from arpo_verl.types import Task


@pytest.fixture(scope="session")
def tasks_dir() -> Path:
    """The folder of OSWorld's task files."""
    folder = harness.find_tasks_dir()
    if folder is None:
        pytest.skip(
            f"OSWorld's task files are not here: set {harness.TASKS_VARIABLE} to a folder with examples/<domain>/*.json"
        )
    return folder


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `environment` keeps what tasks download."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def environment(downloads: Path) -> Iterator[OSWorldEnvironment]:
    """A desktop with OSWorld's screen; each reset makes it a fresh one."""
    environment = harness.make_environment(downloads)
    yield environment
    environment.close()


@pytest.fixture
def task(tasks_dir: Path) -> Callable[[str, str], Task]:
    """Loads a task by domain and the start of its id."""
    missing = packages.missing_packages(packages.OSWORLD)
    if missing:
        pytest.skip(f"programs of OSWorld's tasks are not installed; run: {packages.install_command(missing)}")

    def load(domain: str, task_id: str) -> Task:
        return harness.load(tasks_dir, domain, task_id)

    return load
