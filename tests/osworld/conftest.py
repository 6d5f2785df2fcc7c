"""OSWorld's task files, wherever they lie, and one embedded desktop per module to run them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import pytest

from arpo_verl.desktop import packages
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.osworld import OSWorldEnvironment
from arpo_verl.tasks.validation import check_tasks_run_here
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
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OSWorldEnvironment]:
    """A desktop with OSWorld's screen; each reset makes it a fresh one."""
    environment = harness.make_environment(tmp_path_factory.mktemp("downloads"))
    yield environment
    environment.close()


@pytest.fixture
def task(tasks_dir: Path) -> Callable[[str, str], Task]:
    """Loads a task by domain and the start of its id. Nothing may stand against running it here."""
    missing = packages.missing_packages(packages.OSWORLD)
    if missing:
        pytest.skip(f"programs of OSWorld's tasks are not installed; run: {packages.install_command(missing)}")

    def load(domain: str, task_id: str) -> Task:
        task = harness.load(tasks_dir, domain, task_id)
        check_tasks_run_here([task], EnvironmentConfig(screen_size=harness.SCREEN))
        return task

    return load
