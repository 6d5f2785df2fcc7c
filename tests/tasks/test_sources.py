"""Sources of tasks: an installed distribution's entry points, found by name and imported only when they are named."""

import json
import sys

import pytest
from support.task_files import GOOD, ids, spec, write

from arpo_verl.errors import TaskError
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.selection import TaskSelection, load_selected_tasks
from arpo_verl.types import Task

MODULE = """
import json, pathlib
from arpo_verl.types import Task
GOOD = json.loads({good!r})

def two(argument):
    for name in ("one", "two"):
        yield {{**GOOD, "id": f"{{argument or 'none'}}-{{name}}"}}

def tasks(argument):
    return [Task("mine", "Do it.", GOOD, domain="office")]

def raising(argument):
    yield {{**GOOD, "id": "first"}}
    raise KeyError("no such split: " + argument)

def text(argument):
    return "one, two"

def one(argument):
    return GOOD

def wrong(argument):
    return [GOOD, 7, {{"id": "x"}}, {{**GOOD, "evaluator": {{"func": "no_such_metric", "result": {{"type": "rule"}}}}}}]

def unsayable(argument):
    endless = {{}}
    endless["x"] = endless
    return [GOOD, {{**GOOD, "id": "set", "more": {{1}}}}, {{**GOOD, "id": "endless", "more": endless}}]

NUMBER = 7
"""
ENTRY_POINTS = """
[arpo_verl.tasks]
two = my_suite.tasks:two
tasks-of-mine = my_suite.tasks:tasks
raising = my_suite.tasks:raising
text = my_suite.tasks:text
one = my_suite.tasks:one
wrong = my_suite.tasks:wrong
unsayable = my_suite.tasks:unsayable
number = my_suite.tasks:NUMBER
absent = my_suite.nowhere:load
broken = my_suite.broken:load
[console_scripts]
other = my_suite.broken:main
"""


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """A distribution as pip leaves it: a package beside its metadata, on the path."""
    site = tmp_path / "site-packages"
    write(site / "my_suite/__init__.py", "")
    write(site / "my_suite/tasks.py", MODULE.format(good=json.dumps(GOOD)))
    write(site / "my_suite/broken.py", "raise RuntimeError('this package is broken')")
    write(site / "my_suite-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: my-suite\nVersion: 1.0\n")
    write(site / "my_suite-1.0.dist-info/entry_points.txt", ENTRY_POINTS)
    monkeypatch.syspath_prepend(site)
    yield
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == "my_suite"]:
        del sys.modules[name]


def test_what_json_cannot_say_is_no_task():
    with pytest.raises(TaskError, match=r"(?s)2 of 3 tasks .*unsayable:\[1\]: a task must contain JSON values.*set"):
        load_tasks("unsayable:")


def test_a_package_brings_tasks_by_its_entry_point():
    assert ids(load_tasks("two:easy")) == ["easy-one", "easy-two"]
    assert ids(load_tasks("two:")) == ["none-one", "none-two"]
    (task,) = load_tasks("tasks-of-mine:")
    assert task == Task("mine", "Do it.", {**GOOD, "id": "mine", "instruction": "Do it."}) and task.domain == "office"


def test_sources_and_files_are_selected_from_together(tmp_path):
    file = write(tmp_path / "t.json", spec(id="filed"))
    assert ids(load_tasks(f"{file}, two:a")) == ids(load_tasks([file, "two:a"])) == ["filed", "a-one", "a-two"]
    assert ids(load_selected_tasks("two:a", TaskSelection(ids=["a-two"]))) == ["a-two"]
    with pytest.raises(TaskError, match=r"two:a\[0\] has the id a-one too"):
        load_tasks(["two:a", "two:a"])


def test_nothing_of_a_package_is_imported_before_it_is_named(tmp_path):
    load_tasks(write(tmp_path / "t.json", GOOD))
    with pytest.raises(TaskError):
        load_tasks("nobody:x")
    assert not [name for name in list(sys.modules) if name.startswith("my_suite")]
    load_tasks("two:")
    assert "my_suite.broken" not in sys.modules


def test_a_path_that_exists_is_a_path_whatever_it_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "two:easy", GOOD)
    assert ids(load_tasks("two:easy")) == [GOOD["id"]]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "nobody:x",
            "'nobody' in NAME:ARGUMENT is not a source of tasks.* absent, broken, .*two, .*install the package",
        ),
        ("absent:", r"'absent' \(my_suite.nowhere:load\) cannot be loaded: ModuleNotFoundError"),
        ("broken:", r"'broken' .*cannot be loaded: RuntimeError: this package is broken"),
        ("number:", r"'number' .*must be callable, got int"),
        ("raising:hard", r"the source raising:hard failed: KeyError: 'no such split: hard'"),
        ("text:", "must return an iterable of tasks, got str"),
        ("one:", "must return an iterable of tasks, got dict"),
        (
            "wrong:",
            r"(?s)3 of 4 tasks cannot be used:.*wrong:\[1\]: a task must be .*, got int.*wrong:\[2\] \(task x\): ",
        ),
    ],
)
def test_what_a_source_does_wrong_is_named(source, message):
    with pytest.raises(TaskError, match=message):
        load_tasks(source)


def test_unusable_tasks_of_a_source_can_be_left_out():
    assert ids(load_tasks("wrong:", skip_unusable=True)) == [GOOD["id"]]
