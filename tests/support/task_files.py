"""A good task in OSWorld's format, changed and written as a test needs it."""

import copy
import json

GOOD = {
    "id": "touch-file",
    "instruction": "Make the file a.txt.",
    "config": [{"type": "launch", "parameters": {"command": ["xterm"]}}],
    "evaluator": {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": "cat a.txt", "shell": True},
        "expected": {"type": "rule", "rules": {"expected": "hello"}},
    },
}


def spec(**changes):
    return copy.deepcopy(GOOD) | changes


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def ids(tasks):
    return [task.task_id for task in tasks]
