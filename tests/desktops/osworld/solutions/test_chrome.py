"""OSWorld's domain `chrome` on the embedded desktop, with Debian's Chromium."""

import pytest
from support.osworld import harness
from support.osworld.solutions.chrome import SOLUTIONS

from arpo_verl.desktops.embedded.programs import has_program
from arpo_verl.types import Task

pytestmark = [
    pytest.mark.desktop,
    pytest.mark.skipif(not has_program("google-chrome"), reason="neither chromium nor google-chrome is installed"),
]
INFEASIBLE = ("480bcfea", "ae78f875")


@pytest.mark.parametrize("task_id", INFEASIBLE)
def test_saying_fail_scores_one(environment, task, task_id):
    assert harness.run_fail(environment, task("chrome", task_id)) == 1.0


def test_the_solution_scores_one(environment, task):
    task_id = "12086550-11c0-466b-b367-1d9e75b3910e"
    assert harness.run_solution(environment, task("chrome", task_id), SOLUTIONS[task_id]) == 1.0


@pytest.mark.release
@pytest.mark.parametrize("task_id", SOLUTIONS)
def test_five_times_in_a_row_on_one_slot_it_is_judged_as_on_a_new_desktop(environment, task, task_id):
    task = task("chrome", task_id)
    assert [harness.scores(environment, task, SOLUTIONS[task_id]) for _ in range(5)] == [(0.0, 1.0)] * 5


def test_the_clients_playwright_drives_the_browser(environment):
    """Through the host's port, the guest's 9222 and the browser's 1337, by set-up and by evaluator."""
    page = "http://127.0.0.1:8000/"
    launch = [
        ["python", "-m", "http.server", "8000", "--bind", "127.0.0.1"],
        ["google-chrome", "--remote-debugging-port=1337"],
        ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"],
    ]
    steps = [{"type": "launch", "parameters": {"command": command}} for command in launch]
    steps.append({"type": "chrome_open_tabs", "parameters": {"urls_to_open": [page, "chrome://version/"]}})
    evaluator = {
        "func": "is_expected_tabs",
        "result": {"type": "open_tabs_info"},
        "expected": {"type": "rule", "rules": {"type": "url", "urls": [page, "chrome://version"]}},
    }
    spec = {"id": "tabs", "instruction": "Look.", "config": steps, "evaluator": evaluator}
    assert harness.run_nothing(environment, Task("tabs", "Look.", spec)) == 1.0
