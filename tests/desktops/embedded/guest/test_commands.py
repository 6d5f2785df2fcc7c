"""Commands: warm interpreters, programs, time-outs."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from support.desktop_harness import eventually, running

pytestmark = pytest.mark.desktop


def python(desktop, code: str) -> dict:
    return desktop.controller.execute_python_command(code)


def test_command_finds_nothing_of_the_one_before_but_its_interpreter(desktop):
    python(desktop, "import os, sys, io; x = 1; os.chdir('/'); os.environ['A'] = 'b'; pyautogui.PAUSE = 9")
    python(desktop, "import sys, io; sys.stdout = io.StringIO()")
    code = "import os; print('x' in globals(), os.getcwd(), os.environ.get('A'), pyautogui.PAUSE, os.getpid())"
    said = {python(desktop, code)["output"] for _ in range(3)}
    assert len(said) == 1 and said.pop().startswith("False /home/user None 0 ")


@pytest.mark.parametrize(
    ("code", "output", "error", "returncode"),
    [
        ("print('a'); import sys; print('b', file=sys.stderr)", "a\n", "b", 0),
        ("import os; os.system('echo from a child')", "from a child\n", "", 0),
        ("import sys; sys.exit(3)", "", "", 3),
        ("import sys; sys.exit('no')", "", "no", 1),
        ("1 / 0", "", "ZeroDivisionError", 1),
        ("syntax error", "", "SyntaxError", 1),
        ("import os; os._exit(4)", "", "ended its interpreter", -1),
        ("print('ü→😀')", "ü→😀\n", "", 0),
        ("print(__name__)", "__main__\n", "", 0),
    ],
)
def test_python_command_answers_like_a_process(desktop, code, output, error, returncode):
    answer = python(desktop, code)
    assert (answer["status"], answer["output"], answer["returncode"]) == ("success", output, returncode)
    assert error in answer["error"]
    assert python(desktop, "print(1)")["output"] == "1\n"


@pytest.mark.parametrize(
    "code",
    [
        "from Xlib.ext import xtest\nxtest.fake_input(display, 2, 0)\ndisplay.sync()",  # a protocol error
        "display.display.error_classes.clear()\ntry: display.create_resource_object('window', 1).get_geometry()\n"
        "except Exception: raise SystemExit(1)",  # python-xlib fails within the connection
        "display.display.socket.close()\ntry: pyautogui.click(5, 5)\nexcept Exception: print('caught')",
        "display.close()",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()",
    ],
)
def test_what_a_command_breaks_in_its_interpreter_meets_no_other(desktop, code):
    python(desktop, f"display = pyautogui._pyautogui_x11._display\n{code}")
    for _ in range(2):
        assert python(desktop, "pyautogui.click(7, 8); print(pyautogui.position())")["output"] == "Point(x=7, y=8)\n"


def test_a_fork_of_a_command_answers_for_no_other(desktop):
    python(desktop, "import os, time\nif os.fork() == 0: time.sleep(0.5); print('child'); 1 / 0")
    assert python(desktop, "import time; time.sleep(1); print('second')")["output"] == "second\n"


def test_nobody_waits_for_what_a_dead_interpreter_started(desktop):
    python(desktop, "import os, subprocess; subprocess.Popen(['sleep', '4322']); os._exit(4)")
    assert python(desktop, "print(1)")["output"] == "1\n"
    assert desktop.sh("pgrep -fx 'sleep 4322' && pkill -fx 'sleep 4322'")


@pytest.mark.parametrize(
    "line",
    ["rm -rf ~", "rm -rf /run/log", "rm /run/log/interpreter; mkfifo /run/log/interpreter"],
)
def test_actions_go_on_whatever_folders_are_gone(desktop, line):
    desktop.sh(line)
    for _ in range(2):
        assert python(desktop, "pyautogui.click(7, 8); print(pyautogui.position())")["output"] == "Point(x=7, y=8)\n"
        python(desktop, "import os; os._exit(1)")  # the next one needs a new interpreter


def test_commands_run_at_once(desktop):
    desktop.setup._launch_setup(["true"])
    address = f"{desktop.controller.http_server}/execute"
    body = {"command": "sleep 4321 & echo started", "shell": True}
    assert requests.post(address, json=body, timeout=60).json()["output"] == "started\n"
    code = "import os, time\nopen('waiting', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    with ThreadPoolExecutor() as executor:
        waiting = executor.submit(requests.post, address, json={"command": ["python", "-c", code]}, timeout=60)
        eventually(lambda: "waiting" in desktop.sh("ls ~"))
        assert python(desktop, "open('go', 'w').close()")["returncode"] == 0
        assert waiting.result().json()["returncode"] == 0


def test_run_python_and_bash_script_answer_as_osworld(desktop):
    result = desktop.controller.run_python_script("print(6 * 7)")
    assert (result["status"], result["output"], result["return_code"]) == ("success", "42\n", 0)
    failed = desktop.controller.run_python_script("raise ValueError('why')")
    assert failed["status"] == "error" and "why" in failed["error"]
    script = desktop.controller.run_bash_script("pwd; echo oops >&2; exit 4", working_dir="/tmp")
    assert script == {"status": "error", "output": "/tmp\noops\n", "error": "", "returncode": 4}


def test_command_that_hangs_is_killed_and_harms_no_other():
    hangs = [
        {"command": ["python", "-c", "import os; os.system('sleep 4321')"]},
        {"command": ["python", "-c", "while True: pass"]},
        {"command": "sleep 4321; true", "shell": True},
    ]
    with running(command_timeout_s=3) as desktop:  # that of the commands which do not hang, too
        address = f"{desktop.controller.http_server}/execute"
        with ThreadPoolExecutor(len(hangs)) as threads:
            answers = list(threads.map(lambda body: requests.post(address, json=body, timeout=60), hangs))
        for answer in answers:
            assert answer.status_code == 500 and "timed out after 3 seconds" in answer.json()["message"]
        assert python(desktop, "print('fine')")["output"] == "fine\n"
        eventually(lambda: desktop.sh("pgrep -x sleep; true") == "")


@pytest.mark.parametrize("command", [["sh", "-c", "head -c 9M /dev/zero"], ["python", "-c", "print('x' * (9 << 20))"]])
def test_output_that_is_too_long_is_cut_and_says_so(desktop, command):
    answer = requests.post(f"{desktop.controller.http_server}/execute", json={"command": command}, timeout=60).json()
    assert answer["output"].endswith("[cut after 8388608 bytes]") and len(answer["output"]) < 8388650


def test_output_without_an_end_ends_at_a_files_limit(desktop):
    answer = requests.post(f"{desktop.controller.http_server}/execute", json={"command": ["yes"]}, timeout=90).json()
    assert answer["returncode"] == -signal.SIGXFSZ and answer["output"].startswith("y\ny\n")
    assert desktop.controller.get_screenshot()
