"""Which tasks are evaluated on the way."""

import pytest

from arpo_verl.tools.evaluation.midway import describe_midway, why_not_midway
from arpo_verl.types import Task


def task(**evaluator):
    return Task("t", "Do.", {"id": "t", "evaluator": evaluator})


READS, OTHER = {"type": "vm_file", "path": "/a"}, "vm_command_line"


def command(words):
    return task(func="exact_match", result={"type": "vm_command_line", "command": words, "shell": True})


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (task(func="infeasible"), None),
        (
            task(func=["f", "g"], result=[READS, {"type": "accessibility_tree"}], expected=[{"type": "rule"}, None]),
            None,
        ),
        (task(func="f", postconfig=[{"type": "execute"}], result=READS), "postconfig"),
        (task(func="f", result={"type": "active_tab_info"}), "getter active_tab_info"),
        (task(func="f", result={"type": "rule"}, expected={"type": "info_from_website"}), "info_from_website"),
        (task(func="f", result={}, expected={"type": "unheard_of"}), "unheard_of"),
        (Task("t", "Do.", {"id": "t"}), "no evaluator"),
        (command("cat ~/answer.txt"), None),
        (command(["ls", "-l", "/tmp"]), None),
        (command("for i in 1 2 3; do [ -s ~/a.txt ] && break; sleep 0.05; done; cat ~/a.txt"), None),
        (command("grep -q x ~/a || echo no"), None),
        *((command(words), OTHER) for words in ("cat a > b", "ls; rm a", "echo `rm a`", "echo $(rm a)")),
        *((command(words), OTHER) for words in ("cat a | tee b", "ls & rm a", "true\nrm a", "X=1 rm a")),
        *((command(words), OTHER) for words in ("if rm a; then true; fi", "while ! rm a; do true; done")),
        *((command(words), OTHER) for words in ("(rm a)", "{ rm a; }", ["python3", "-c", "1"], [], None, {"ls": 1})),
    ],
)
def test_an_evaluator_that_only_reads_is_asked_on_the_way_and_no_other(task, reason):
    told = why_not_midway(task)
    assert told is None if reason is None else reason in told


def test_it_says_when_not():
    tasks = [task(func="infeasible"), task(func="f", result={"type": "active_tab_info"})]
    assert "for all 1 tasks" in describe_midway(tasks[:1], [15, 50])
    line = describe_midway(tasks, [15, 50])
    assert "1 of 2 tasks" in line and "(1: its evaluator's getter active_tab_info may change the desktop)" in line
    assert "for 0 of 2 tasks" in (line := describe_midway(tasks, [15, 50], by_harness=True)) and "a harness" in line
