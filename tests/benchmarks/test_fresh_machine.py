"""What `benchmarks/fresh_machine.py` types and counts, without the machine."""

import pytest
from fresh_machine import Typed, commands_of, examples, figures_of

pytestmark = pytest.mark.study


def test_it_types_readmes_commands_as_they_stand():
    commands = [command for block in examples("bash") for command in commands_of(block)]
    assert commands[0] == "make demo" and commands[1].startswith(".venv/bin/arpo-verl view ")
    assert not any("#" in command for command in commands)
    assert all("arpo_verl" in code for code in examples("python"))


def test_lines_are_counted_before_the_first_step_and_from_step_to_step():
    step = "step {:2} of 20  success  25.0%  replays 2  faults 1  60 s"
    shown = ["packages", "estimate", step.format(1), step.format(2), "noise", step.format(3), "where all is"]
    lines = [(60.0 * second, line) for second, line in enumerate(shown, 1)]
    demo = Typed("make demo", status=0, seconds=600.0, lines=lines)
    refused = Typed("arpo-verl train x data.train_files=TASKS.json", status=2)
    figures = figures_of([demo, Typed("view", status=-2), refused, Typed("summary", status=1)])
    assert figures == {
        "minutes_to_first_step": 3.0,
        "minutes": 10.0,
        "lines_before_first_step": 2,
        "lines_a_step": 1.5,
        "steps": 3,
        "commands": 4,
        "failed": 1,
    }
