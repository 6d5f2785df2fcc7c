"""Task files with one fault each: every one is refused with its file, id and place, and no other's check ends."""

import copy
import functools
import itertools
import operator
import re

import pytest
from support.task_files import spec, write

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.tasks import validation
from arpo_verl.tasks.loader import TaskProblem, scan_tasks
from arpo_verl.tasks.validation import explain_task
from arpo_verl.types import Task

URL = "https://files.example.com/a.xlsx"


def step(kind, **parameters):
    return {"type": kind, "parameters": parameters}


def rule(**rules):
    return {"type": "rule", "rules": rules}


VM_FILE = {"type": "vm_file", "path": "/home/user/a.xlsx", "dest": "a.xlsx"}
DATE = {"type": "rule_relativeTime", "rules": {"relativeTime": {"from": "tomorrow"}, "expected": {"time": "{DoW}"}}}
TASKS = [
    spec(
        id="table",
        instruction="See https://example.com/ and sort the table.",
        snapshot="libreoffice_calc",
        source="https://example.com/1",
        related_apps=["libreoffice_calc"],
        proxy=False,
        config=[
            step("download", files=[{"url": URL, "path": "/home/user/a.xlsx"}]),
            step("open", path="/home/user/a.xlsx"),
            step("execute", command=["sh", "-c", "sudo apt-get install jq"], shell=False),
            step("sleep", seconds=2),
        ],
        evaluator={
            "postconfig": [step("activate_window", window_name="a.xlsx", strict=True)],
            "func": "compare_table",
            "result": VM_FILE,
            "expected": {"type": "cloud_file", "path": URL, "dest": "b.xlsx"},
            "options": {"rules": [{"type": "sheet_data"}]},
        },
    ),
    spec(
        id="page",
        config=[
            step("launch", command="google-chrome --remote-debugging-port=1337", shell=True),
            step("chrome_open_tabs", urls_to_open=["https://example.com/"]),
        ],
        evaluator={
            "func": ["exact_match", "check_list", "check_direct_json_object"],
            "conj": "or",
            "result": [{"type": "vm_command_line", "command": "date"}, VM_FILE, {"type": "open_tabs_info"}],
            "expected": [rule(expected="x"), rule(expect=["a"]), DATE],
        },
    ),
]
FAULTS = {
    "absent": ...,
    "null": None,
    "number": 5,
    "negative": -1,
    "true": True,
    "blank": "",
    "text": "http://[",
    "control": "\0\x1b[2J",
    "half": "\ud800",
    "nothing": [],
    "list": [3],
    "deep": [[[["x"]]]],
    "object": {"odd": {"b": None}},
}
TEXT = "text control"
ANY = f"{TEXT} null number negative true blank nothing list deep object"
# The faults that a desktop can play after all, by their place; it can play no other.
WORKS = {
    "instruction": TEXT,
    "(snapshot|source|proxy|.*shell|.*strict|.*time)": f"{ANY} absent",
    "related_apps": "absent null nothing",
    "(config|evaluator.postconfig)": "absent nothing",
    r"(config|evaluator.postconfig|.*files|evaluator.options.rules)\.\d": "absent",
    r"(related_apps|.*command|.*urls_to_open|.*expect)\.\d": f"{TEXT} blank",
    r"(related_apps|.*command|.*expect)\.\d": "absent",
    "(.*files|evaluator.options.rules|.*expect)": "nothing",
    ".*(url|path|window_name|dest|command)": TEXT,
    ".*seconds": "number",
    "table.evaluator.expected": "absent blank nothing",  # the rules in its options may read the result alone
    "evaluator.conj": "absent",
    "evaluator.expected.2.rules.expected": "object",
    # What a result is compared with is the author's matter.
    "evaluator.(options.rules.0.type|expected.0.rules.expected|expected.2.rules.relativeTime.from)": ANY,
}


def places(value, *above):
    """Yield the path to each part of a JSON value."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*above, key)
        yield from places(part, *above, key)


def mutants():
    """Yield each task with one fault, its place and name, and whether a desktop can play it."""
    for task in TASKS:
        for path, (name, fault) in itertools.product(places(task), FAULTS.items()):
            mutant = copy.deepcopy(task)
            part = functools.reduce(operator.getitem, path[:-1], mutant)
            if fault is ...:
                del part[path[-1]]
            else:
                part[path[-1]] = fault
            place = ".".join(map(str, path))
            forms = (place, f"{task['id']}.{place}")
            works = any(name in WORKS[one].split() for one in WORKS for form in forms if re.fullmatch(one, form))
            yield mutant, f"{place}={name}", works


def test_each_fault_is_refused_with_its_file_id_and_place_and_ends_no_other_check(tmp_path, monkeypatch):
    pytest.importorskip("desktop_env")
    monkeypatch.setattr(validation, "_is_reachable", lambda origin: False)
    environments = [EnvironmentConfig(), EnvironmentConfig(provider="qemu", path_to_vm="/x.qcow2")]
    cases = list(mutants())
    paths = [write(tmp_path / f"{number}.json", mutant) for number, (mutant, _, _) in enumerate(cases)]
    found = [next(iter(scan_tasks(path))) for path in paths]
    wrong = [case for (_, case, works), one in zip(cases, found, strict=True) if isinstance(one, Task) != works]
    assert len(cases) > 1000 and wrong == []
    for (mutant, case, _), one, path in zip(cases, found, paths, strict=True):
        if isinstance(one, TaskProblem):
            assert str(path) in one.where and len(one.what) < 600
            assert case.startswith("id=") or f"(task {mutant['id']})" in one.where
            place = re.sub(r"\.\d+", "", case.partition("=")[0]).rpartition(".")[2]
            assert place in one.what or "half of a character" in one.what, (case, one.what)
        for environment in environments:
            explain_task(Task("t", str(mutant.get("instruction")), mutant), environment)
