"""Which of an evaluator's commands run apart from the session: the rule, and that it reaches the guest."""

import json

import pytest

pytest.importorskip("desktop_env")

from support.scripted_guest import task  # noqa: E402

from arpo_verl.desktops.osworld.apart import runs_apart  # noqa: E402
from arpo_verl.tasks import load_tasks  # noqa: E402
from arpo_verl.tasks.families import generation  # noqa: E402

OF_SESSION = {"window-move-right"}
"""Tasks of the shipped suites: it evaluates what a program says."""


@pytest.mark.parametrize(
    ("command", "shell"),
    [
        (["ls", "/home/user/Desktop", "|", "grep", "test.py"], False),
        (["/bin/bash", "-c", 'x=$(cat ~/.bash_history | grep "[c]ode "); if [ -z "$x" ]; then echo no; fi'], False),
        ("[ -d ~/a ] && echo 'it is; it is' || echo \"no $(wc -l < ~/b) $x\"", True),
        ("for i in 1 2; do [ $(cat ~/a | wc -l) -ge 2 ] && break; sleep 0.05; done; cat ~/a", True),
        ("while ! [ -e a ]\ndo sleep 1\ndone; { cat a; } | (sort | uniq)", True),
        ("timeout 1 xclip -o", True),
        ("gsettings get org.gnome.desktop.interface gtk-theme", True),
        (["python3", "-I", "-c", "print(1)"], False),
        ("/usr/bin/python3 -I -c 'print(1)'", True),
        ("find ~ -name '*.txt'", True),
    ],
)
def test_commands_of_known_programs_run_apart(command, shell):
    assert runs_apart(command, shell)


@pytest.mark.parametrize(
    ("command", "shell"),
    [
        (["python", "-c", "print(1)"], False),
        (["gsettings", "set", "a", "b"], False),
        (["bash", "eval.sh"], False),
        (["bash", "-c", "ls", "x"], False),
        ([], False),
        (["ls", 1], False),
        (["ls"], True),
        (None, True),
        ("ls", False),
        ("ls ~; ps aux", True),
        ("cat a | xargs git", True),
        ("echo $(cat $(git log))", True),
        ('echo "$(git log)"', True),
        ("echo `git log`", True),
        ("cat <(git log)", True),
        ("cat << git\nlog", True),
        ("ls > ~/a", True),
        ("PATH=~/bin ls", True),
        ("$x a", True),
        ("'ls' a", True),
        ("eval ls", True),
        ("~/ls", True),
        ("/home/user/ls", True),
        ("/ls", True),
        ("timeout 1 git log", True),
        ("find ~ -exec git {} ;", True),
        ("for i in 1; do git log; done", True),
        ("if git status; then echo; fi", True),
        ("ls /proc/1", True),
        ("python3 -I ~/a.py < ~/b", True),
        ("awk -f ~/a ~/b", True),
        (["ls", "/dev/shm"], False),
        ("ls 'a", True),
    ],
)
def test_all_others_stay_the_session_s(command, shell):
    assert not runs_apart(command, shell)


def commands_of(spec):
    results = spec["evaluator"].get("result", [])  # infeasible tasks have none
    for one in results if isinstance(results, list) else [results]:
        if one["type"] == "vm_command_line":
            yield one["command"], one.get("shell", False)


def test_what_the_shipped_tasks_evaluate_runs_apart_but_for_one_that_evaluates_what_a_program_says():
    shipped = load_tasks(["embedded", "embedded_long"])
    assert {one.task_id for one in shipped if not all(runs_apart(*c) for c in commands_of(one.spec))} == OF_SESSION
    generated = [generation.generate("training", index).spec for index in range(40)]
    assert all(runs_apart(*command) for spec in generated for command in commands_of(spec))


def test_a_guest_is_asked_so_at_the_evaluation_alone(scripted, guest):
    """And for the steps before it, which the policy's programs can reach as well."""
    step = {"type": "execute", "parameters": {"command": ["ls"]}}
    environment = scripted()
    environment.reset(task(config=[step], postconfig=[step]))
    before = len(guest.requests)
    environment.evaluate()
    asked = [
        (index >= before, path, json.loads(body).get("apart"))
        for index, (path, body) in enumerate(guest.requests)
        if path in ("/execute", "/setup/execute")
    ]
    assert asked == [(False, "/setup/execute", None), (True, "/setup/execute", True), (True, "/execute", True)]
