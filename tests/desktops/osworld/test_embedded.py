"""OSWorld's client on the embedded desktop, real programs in a real window."""

import contextlib
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import requests
from support.desktop_harness import eventually
from support.name_dialog import NAME_DIALOG, TASK

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.embedded import guest_process
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment
from arpo_verl.errors import (
    DesktopEndedError,
    DesktopLostError,
    DesktopSetupError,
    DesktopUnclearError,
)
from arpo_verl.types import Hotkey, Move, Point, Task, TypeText, Wait

pytestmark = pytest.mark.desktop

SOLUTION = (TypeText("arpo"), Wait(), Hotkey(("enter",)), Wait())


def config(**options):
    return EnvironmentConfig(screen_size=(320, 240), **options)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setattr(guest_process, "_out_of_memory_kills", lambda: 0)  # another test's would leave no proof
    environment = OSWorldEnvironment(config(cache_dir=str(tmp_path)))
    yield environment
    environment.close()


def test_typing_into_a_dialog_is_evaluated_and_leaves_no_trace_in_the_next_episode(environment):
    first = environment.reset(TASK)
    seen = [environment.step(action) for action in SOLUTION]
    assert len({first.screenshot, *(observation.screenshot for observation in seen)}) >= 3
    assert environment.evaluate().score == 1.0
    at_once = {**NAME_DIALOG["evaluator"]["result"], "command": "cat ~/name.txt"}
    spec = NAME_DIALOG | {"evaluator": NAME_DIALOG["evaluator"] | {"result": at_once}}
    environment.reset(Task(TASK.task_id, TASK.instruction, spec))
    assert environment.evaluate().score == 0.0


TERMINAL = NAME_DIALOG | {
    "config": [
        {"type": "launch", "parameters": {"command": ["xterm", "-title", "Shell"]}},
        {
            "type": "execute_with_verification",
            "parameters": {
                "command": ["true"],
                "verification": {"window_exists": "Shell"},
                "max_wait_time": 60,
                "check_interval": 0.1,
            },
        },
    ]
}


def look_until_it_ends(environment):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        environment.step(Move(Point(9, 9)))
    pytest.fail("the desktop lives on")


@pytest.mark.parametrize(
    ("typed", "error", "message"),
    [
        ("kill -9 -1", DesktopEndedError, "signal 9"),
        # An e-mail with "signal" in it made a 0 of an X server that this host's owner had killed.
        ("echo signal; pkill Xvfb", DesktopUnclearError, None),
        ("pkill -SEGV Xvfb", DesktopUnclearError, None),
    ],
)
def test_only_who_kills_all_of_a_desktop_is_proved_to_have_ended_it(environment, typed, error, message):
    environment.reset(Task("t", "i", TERMINAL))
    with pytest.raises(error, match=message):
        environment.step(TypeText(f"{typed}\n"))
        look_until_it_ends(environment)


def test_all_of_a_desktop_that_ends_at_once_was_ended_from_within(environment):
    environment.reset(TASK)
    with contextlib.suppress(requests.RequestException):
        environment._client.setup_controller._launch_setup("sleep 0.2; kill -9 -1", shell=True)
    with pytest.raises(DesktopEndedError, match="Xvfb: signal 9"):
        look_until_it_ends(environment)


def test_a_desktop_that_somebody_else_ended_proves_nothing(environment):
    """The kernel's out-of-memory killer, and the end of a whole job by its cluster."""
    environment.reset(TASK)
    guest = environment._client.provider._guest
    guest._out_of_memory_kills -= 1
    with pytest.raises(DesktopUnclearError):
        environment._client.setup_controller._launch_setup("pkill -9 Xvfb", shell=True)
        look_until_it_ends(environment)
    environment.reset(TASK)
    with pytest.raises(DesktopUnclearError):  # by this host's owner, or the policy
        environment._client.setup_controller._launch_setup("pkill -9 Xvfb", shell=True)
        look_until_it_ends(environment)
    environment.reset(TASK)
    guest = environment._client.provider._guest
    first = psutil.Process(guest._process.pid)
    for process in (*first.children(recursive=True), first):  # process 1 outlives it
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGQUIT)
    with pytest.raises(DesktopLostError):
        look_until_it_ends(environment)


def test_a_screen_that_the_provider_cannot_give_is_a_config_error_before_anything_starts():
    with pytest.raises(ValueError, match="screen_size"):
        OSWorldEnvironment(EnvironmentConfig(screen_size=(7000, 4320))).prepare()


def test_closing_from_another_thread_ends_a_call_that_hangs(environment):
    environment.reset(TASK)
    hang = NAME_DIALOG | {"config": [{"type": "execute", "parameters": {"command": ["sleep", "60"]}}]}

    def hangs():
        guest = environment._client.provider._guest
        with contextlib.suppress(psutil.NoSuchProcess, AttributeError):  # one desktop ends, the next one begins
            processes = psutil.Process(guest._process.pid).children(recursive=True)
            return any(process.cmdline() == ["sleep", "60"] for process in processes)

    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(environment.reset, Task("t", "i", hang))
        eventually(hangs)
        started = time.monotonic()
        environment.close()
        with pytest.raises((DesktopSetupError, DesktopLostError)):
            call.result()
        assert time.monotonic() - started < 50, "it waited for the command's end"


def test_a_command_of_the_evaluator_s_runs_apart_from_the_session(environment):
    """Its folder for temporary files is no program's of the desktop."""
    result = {"type": "vm_command_line", "command": "echo $TMPDIR", "shell": True}
    expected = {"type": "rule", "rules": {"expected": "/dev/shm\n"}}
    spec = NAME_DIALOG | {"config": [], "evaluator": {"func": "exact_match", "result": result, "expected": expected}}
    environment.reset(Task("t", "i", spec))
    assert environment.evaluate().score == 1.0
