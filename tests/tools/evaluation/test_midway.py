"""Which tasks are evaluated on the way."""

import pytest

from arpo_verl.tools.evaluation.midway import describe_midway, why_not_midway
from arpo_verl.types import Task


def task(**evaluator):
    return Task("t", "Do.", {"id": "t", "evaluator": evaluator})


def command(words):
    return task(func="exact_match", result={"type": "vm_command_line", "command": words, "shell": True})


def test_getters_that_only_read_are_asked():
    assert why_not_midway(task(func="infeasible")) is None
    getters = [{"type": "vm_file", "path": "/a"}, {"type": "accessibility_tree"}]
    assert why_not_midway(task(func=["f", "g"], result=getters, expected=[{"type": "rule"}, None])) is None


@pytest.mark.parametrize(
    ("evaluator", "reason"),
    [
        ({"func": "f", "postconfig": [{"type": "execute"}], "result": {"type": "vm_file"}}, "postconfig"),
        ({"func": "f", "result": {"type": "active_tab_info"}}, "getter active_tab_info"),
        ({"func": "f", "result": {"type": "rule"}, "expected": {"type": "info_from_website"}}, "info_from_website"),
        ({"func": "f", "result": {}, "expected": {"type": "unheard_of"}}, "unheard_of"),
    ],
)
def test_others_are_not_and_why(evaluator, reason):
    assert reason in why_not_midway(task(**evaluator))


@pytest.mark.parametrize(
    "words",
    [
        "cat ~/answer.txt",
        ["ls", "-l", "/tmp"],
        "for i in 1 2 3; do [ -s ~/a.txt ] && break; sleep 0.05; done; cat ~/a.txt",
        "grep -q x ~/a || echo no",
    ],
)
def test_commands_of_programs_that_only_read_are_asked(words):
    assert why_not_midway(command(words)) is None


@pytest.mark.parametrize(
    "words",
    [
        "cat a > b",
        "ls; rm a",
        "echo `rm a`",
        "echo $(rm a)",
        "cat a | tee b",
        "ls & rm a",
        "true\nrm a",
        "if rm a; then true; fi",
        "while ! rm a; do true; done",
        "(rm a)",
        "{ rm a; }",
        "X=1 rm a",
        ["python3", "-c", "1"],
        [],
        None,
        {"ls": 1},
    ],
)
def test_commands_that_might_write_are_not(words):
    assert "vm_command_line" in why_not_midway(command(words))


def test_a_task_of_another_form_is_not():
    assert why_not_midway(Task("t", "Do.", {"id": "t"})) is not None


def test_it_says_when_not():
    tasks = [task(func="infeasible"), task(func="f", result={"type": "active_tab_info"})]
    assert "for all 1 tasks" in describe_midway(tasks[:1], [15, 50])
    line = describe_midway(tasks, [15, 50])
    assert "1 of 2 tasks" in line and "(1: its evaluator's getter active_tab_info may change the desktop)" in line
    assert "for 0 of 2 tasks" in (line := describe_midway(tasks, [15, 50], by_harness=True)) and "a harness" in line
