"""Which of OSWorld's tasks are refused before anything starts, and with what reason."""

import json
from pathlib import Path

import pytest
from support.osworld import harness

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.tasks import load_tasks, validation
from arpo_verl.tasks.loader import TaskProblem, scan_tasks
from arpo_verl.tasks.validation import explain_task


@pytest.fixture(scope="module")
def tasks(tasks_dir):
    return load_tasks(tasks_dir, skip_missing=True, skip_unusable=True)


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch):
    """What Debian has, and nothing else; no test asks the network."""
    monkeypatch.setattr(validation, "_is_reachable", lambda origin: False)
    monkeypatch.setattr(validation, "has_program", lambda name: name != "code")
    monkeypatch.setattr(validation, "missing_packages", lambda packages: [])


def reasons(tasks, task_id):
    (task,) = (task for task in tasks if task.task_id.startswith(task_id))
    return "; ".join(explain_task(task, EnvironmentConfig(screen_size=harness.SCREEN)))


@pytest.mark.parametrize(
    ("task_id", "reason"),
    [
        ("3c8f201a", "names the website huggingface.co"),
        ("69acbb55", "names the website github.com"),
        ("f8369178", "names the website gnome-look.org"),
        ("bba3381f", "names the website devstreaming-cdn.apple.com"),
        ("930fdb3b", "code (not in Debian)"),
        ("06fe7178", "opens the website www.tripadvisor.com"),
        ("0c825995", "logs in to an account on the web"),
        ("26150609", "pip install pygame"),
        ("0810415c", "downloads from huggingface.co"),
    ],
)
def test_what_a_task_lacks_is_said(tasks, task_id, reason):
    assert reason in reasons(tasks, task_id)


def test_of_osworlds_tasks_only_those_whose_metric_the_client_lacks_are_refused(tasks_dir):
    problems = [one for one in scan_tasks(tasks_dir / "examples") if isinstance(one, TaskProblem)]
    assert [one.what.count("which the installed desktop-env does not have") for one in problems] == [2, 1]
    assert {Path(one.where.partition(" ")[0]).stem[:8] for one in problems} == {"e8172110", "5ac2891a"}


def test_a_website_in_the_instruction_that_nobody_needs_to_visit_is_no_reason(tasks):
    assert reasons(tasks, "3299584d") == ""


def test_of_those_without_downloads_only_what_lacks_the_web_or_a_program_is_refused(tasks, tasks_dir):
    wanted = {task_id for ids in json.loads((tasks_dir / "no_download.json").read_text()).values() for task_id in ids}
    chosen = [task for task in tasks if task.task_id in wanted]
    assert len(chosen) == len(wanted) - 1  # 5ac2891a names a metric that desktop-env 1.0.2 lacks
    refused = {task.task_id[:8] for task in chosen if reasons(tasks, task.task_id)}
    without_code = {task.task_id[:8] for task in chosen if "code" not in reasons(tasks, task.task_id)}
    assert refused & without_code == {"3c8f201a", "f8369178"}


def test_on_osworlds_own_machines_only_what_a_sandbox_cannot_evaluate_is_refused(tasks):
    why = {"asks ipapi.co": 5, "(googledrive_file)": 7, "imports the policy's code": 2}
    for provider in ("docker", "vmware"):
        options = {"path_to_vm": "machine.vmx"} if provider == "vmware" else {}
        config = EnvironmentConfig(provider=provider, screen_size=harness.SCREEN, num_desktops=1, **options)
        found = [reason for task in tasks for reason in explain_task(task, config)]
        assert {words: sum(words in reason for reason in found) for words in why} == why
        assert len(found) == sum(why.values())
