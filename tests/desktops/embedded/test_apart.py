"""An evaluator's command that runs apart, on a desktop whose policy attacks it: none of its answers is the policy's."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import requests
from support.desktop_harness import Desktop, eventually, running, sandbox_processes

from arpo_verl.desktops.embedded.provider import EmbeddedProvider

pytestmark = pytest.mark.desktop

TRIES = 20
ATTACK = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
open('begun', 'w').close()
while True:
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
        try:
            if b'honest' not in open(f'/proc/{pid}/cmdline', 'rb').read() or pid == os.getpid():
                continue
            print(pid, file=open('found', 'a'))
            for fd in (1, 2):
                open(f'/proc/{pid}/fd/{fd}', 'w').write('forged')
            if os.path.exists('kill'):
                libc.ptrace(16, pid, 0, 0)  # PTRACE_ATTACH
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0x40000000)  # the dead are their tracer's to collect
        except OSError:
            pass
"""
COMMAND = "cat honest.txt; sleep 0.05; true honest"


def post(desktop: Desktop, command: Any, apart: bool) -> requests.Response:
    asked = {"command": command, "shell": isinstance(command, str), "apart": apart}
    return requests.post(f"{desktop.controller.http_server}/execute", json=asked, timeout=60)


def execute(desktop: Desktop, command: Any, apart: bool = True) -> dict[str, Any]:
    answer = post(desktop, command, apart)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def refusal(desktop: Desktop, command: Any, apart: bool) -> str:
    answer = post(desktop, command, apart)
    assert answer.status_code == 500
    return str(answer.json()["message"])


@pytest.fixture
def attacker(jail: Desktop) -> Desktop:
    """A desktop on which the attack runs, and has proved that it works on a command of the session's."""
    jail.sh("echo honest > honest.txt")
    jail.setup._launch_setup(["python3", "-c", ATTACK])
    eventually(lambda: jail.sh("ls begun") == "begun")
    assert eventually(lambda: "forged" in execute(jail, COMMAND, apart=False)["output"])
    jail.sh("touch kill")
    assert eventually(lambda: execute(jail, COMMAND, apart=False)["returncode"] == -signal.SIGKILL)
    jail.sh("rm found kill")
    return jail


def test_the_attack_of_a_session_s_command_neither_finds_nor_changes_one_that_runs_apart(attacker):
    told = [execute(attacker, COMMAND) for _ in range(TRIES // 2)]
    attacker.sh("touch kill")
    told += [execute(attacker, COMMAND) for _ in range(TRIES // 2)]
    assert [(answer["output"], answer["error"], answer["returncode"]) for answer in told] == [
        ("honest\n", "", 0)
    ] * TRIES
    assert attacker.sh("ls found 2> /dev/null") == ""


def test_nothing_that_the_user_put_anywhere_runs_in_a_command_that_runs_apart(jail):
    """Modules that Python loads by itself, programs of the same names, start-up files of shells."""
    module = "open('/home/user/ran', 'a').write('python')"
    jail.sh(
        f"for v in $(seq 9 15); do d=~/.local/lib/python3.$v/site-packages; mkdir -p $d; "
        f"for m in usercustomize sitecustomize; do echo {shlex.quote(module)} > $d/$m.py; done; done; "
        f"echo {shlex.quote(module)} > os.py; cp os.py json.py; "
        "mkdir -p bin .local/bin; for d in . bin .local/bin /tmp /var/tmp /dev/shm; do for p in ls cat python3; do "
        "printf '#!/bin/sh\\necho $0 >> ~/ran\\n' > $d/$p; chmod +x $d/$p; done; done; "
        "for f in .bashrc .bash_profile .profile .bash_env; do echo 'echo shell >> ~/ran' > $f; done; "
        "mkdir -p /dev/shm/x; echo told > honest.txt"
    )
    for python in ("/usr/bin/python3", "python3"):
        assert execute(jail, [python, "-I", "-c", "import json, os; print(json.dumps('told'))"])["output"] == '"told"\n'
    assert execute(jail, ["bash", "-c", "ls honest.txt; cat honest.txt"])["output"] == "honest.txt\ntold\n"
    assert execute(jail, "echo $PATH $TMPDIR; ls -A $TMPDIR")["output"] == f"{jail.sh('echo $PATH')} /dev/shm\n"
    assert jail.sh("cat ran 2> /dev/null") == ""


def test_a_command_that_runs_apart_answers_as_one_of_the_session_does(jail):
    """It has its user, files, settings, clipboard and screen, and its ways to fail."""
    jail.sh("umask 077; echo mine > private; mkdir closed; chmod 0 closed; (echo copied | xclip -i) > /dev/null 2>&1")
    eventually(lambda: jail.sh("xclip -o") == "copied")  # what stays of `xclip -i` says so on its own time
    for command in (
        "id; pwd; echo ~ $DISPLAY; cat private; ls -la ~; ls closed; stat private",
        "xclip -o; wmctrl -m; xprop -root _NET_CURRENT_DESKTOP; gsettings get org.gnome.desktop.interface gtk-theme",
        "echo out; echo error >&2; exit 3",
        ["ls", "/home/user", "|", "grep", "x"],
        "cat ~/missing",
        "head -c 9000000 /dev/zero | tr '\\0' x",
        "kill -9 $$",
    ):
        assert execute(jail, command) == execute(jail, command, apart=False)


@pytest.mark.parametrize("apart", [False, True])
def test_a_command_that_does_not_end_or_start_says_so(jail, apart):
    message = refusal(jail, ["no-such-program"], apart)
    assert message == "[Errno 2] No such file or directory: 'no-such-program'"


def test_the_desktop_ends_with_its_process_1(jail):
    """Whichever of the two first processes ends."""
    guest = jail.provider._guest
    first = guest._process.pid
    process_1 = min(_children(first))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # as a cluster that takes its node back
        os.kill(first, number)
    assert execute(jail, "echo alive")["output"] == "alive\n" and jail.provider.is_alive()
    os.kill(process_1, signal.SIGKILL)
    assert eventually(lambda: not jail.provider.is_alive())
    jail.provider.revert_to_snapshot()
    assert jail.controller.get_screenshot()


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def _command_lines(provider: EmbeddedProvider) -> list[bytes]:
    """Of all that runs in a desktop, by a look from outside: a busy machine has no command end within 0.3 s."""
    lines = []
    for pid in sandbox_processes(provider):
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return lines


def test_a_command_that_takes_too_long_is_killed_with_its_children():
    with running(command_timeout_s=0.3) as desktop:
        assert "timed out after 0.3 seconds" in refusal(desktop, "sleep 4321; sleep 4322", apart=True)
        eventually(lambda: not any(line.startswith(b"sleep\0") for line in _command_lines(desktop.provider)))
