"""Make a task's JSON, its expert's replies and its labels from a split and a number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from arpo_verl.agent.actions.reply import Reply
from arpo_verl.agent.actions.ui_tars import parse_reply
from arpo_verl.errors import TaskError
from arpo_verl.lib.config import did_you_mean
from arpo_verl.lib.files import replacing_directory
from arpo_verl.tasks.families.kinds import FAMILIES, HELD_OUT_FAMILIES, LONG_FAMILIES, Draw, Opened, Plan, Press
from arpo_verl.tasks.families.styles import (
    HELD_OUT_THEMES,
    HELD_OUT_WORDS,
    SCREEN,
    THEMES,
    TRAINING_WORDS,
    Label,
    Theme,
)
from arpo_verl.tasks.families.windows import Message


@dataclass(frozen=True)
class GeneratedTask:
    """One task of a family."""

    family: str
    spec: dict[str, Any] = field(repr=False)
    """OSWorld's JSON."""
    replies: tuple[dict[str, str], ...]
    """Replies that solve it: `thought` and `action` in the UI-TARS grammar, one action each, in pixels of `SCREEN`."""
    labels: tuple[Label, ...]
    """All texts that are visible after the set-up."""


class _Split(NamedTuple):
    words: Sequence[str] = TRAINING_WORDS
    themes: Sequence[Theme] = THEMES
    families: Mapping[str, Callable[[Draw], Plan]] = FAMILIES


_SPLITS = {
    "training": _Split(),
    "validation": _Split(),
    "held_out_seeds": _Split(),
    "held_out_words": _Split(words=HELD_OUT_WORDS),
    "held_out_themes": _Split(themes=HELD_OUT_THEMES),
    "held_out_families": _Split(families=HELD_OUT_FAMILIES),
    "long": _Split(families=LONG_FAMILIES),
    "held_out_long": _Split(families=LONG_FAMILIES),
}
SPLITS = tuple(_SPLITS)
"""Each split has its own seeds."""

REPLIES_FILE = "replies.json"
_ID = re.compile(r"(.+)-([0-9]{1,18})-[a-z]+")
_MOST = 1_000_000
"""Tasks that are asked for at once; more is a slip of the keyboard that would take hours."""
_NO_TERMINAL = "cd ~/.config/openbox && sed -i '/C-A-t/d; /root-menu/d' rc.xml && openbox --reconfigure"
"""In a shell one line writes the answer and nothing is pressed: so the key and the menu that open one go."""


def generate(split: str, index: int) -> GeneratedTask:
    """Generate the task of this number, the same one on all machines; the numbers go through the families in turn.

    Raises:
        TaskError: there is no such split, or the number is negative.
    """
    family, plan = draw_plan(split, index)
    labels = (label for one in plan.windows if one.seen for label in one.window.labels(one.at))
    spec = task_json(f"{split}-{index:06d}-{family}", plan)
    return GeneratedTask(family, spec, tuple(_replies(plan.presses)), tuple(labels))


def draw_plan(split: str, index: int) -> tuple[str, Plan]:
    """Draw the family and the plan of the task of this number.

    Raises:
        TaskError: as `generate`.
    """
    if split not in _SPLITS:
        hint = did_you_mean(split, SPLITS)
        raise TaskError(f"a split of the families must be one of {', '.join(SPLITS)}, got {split!r}{hint}")
    if index < 0:
        raise TaskError(f"the number of a generated task must be 0 or more, got {index}")
    words, themes, families = _SPLITS[split]
    family = list(families)[index % len(families)]
    return family, families[family](Draw(Random(f"{split} {index}"), words, themes))


def replies_of(task_id: str) -> list[Reply]:
    """Return the expert's replies to a generated task, by its id, with points in pixels of `SCREEN`.

    Raises:
        TaskError: it is not a generated task's id.
    """
    found = _ID.fullmatch(task_id)
    task = generate(found[1], int(found[2])) if found else None
    if task is None or task.spec["id"] != task_id:
        raise TaskError(f"{task_id!r} must be a generated task's id, such as {generate('training', 0).spec['id']}")
    return [parse_reply(f"Thought: {one['thought']}\nAction: {one['action']}", SCREEN, SCREEN) for one in task.replies]


def load(argument: str) -> Iterator[dict[str, Any]]:
    """Yield the tasks of `families:SPLIT:COUNT`, or of `families:SPLIT:FIRST:COUNT`.

    Raises:
        TaskError: the argument has neither form.
    """
    split, *numbers = argument.split(":")
    if not 1 <= len(numbers) <= 2 or not all(re.fullmatch("[0-9]{1,9}", number) for number in numbers):
        raise TaskError(f"write families:SPLIT:COUNT or families:SPLIT:FIRST:COUNT, not families:{argument}")
    first, count = (0, *map(int, numbers))[-2:]
    _check_count(count)
    for index in range(first, first + count):
        yield generate(split, index).spec


def write(folder: Path, split: str, count: int, first: int = 0) -> None:
    """Write tasks to `folder/tasks`, one file each, and the replies to `folder/replies.json`: all or nothing.

    Raises:
        TaskError: as `generate`, or the folder exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TaskError(f"the folder {folder} is not empty; name a new or an empty one")
    _check_count(count)
    generated = [generate(split, index) for index in range(first, first + count)]
    replies = {task.spec["id"]: task.replies for task in generated}
    with replacing_directory(folder) as scratch:
        (scratch / "tasks").mkdir()
        for task in generated:
            content = json.dumps(task.spec, indent=2) + "\n"
            (scratch / "tasks" / f"{task.spec['id']}.json").write_text(content, encoding="utf-8")
        (scratch / REPLIES_FILE).write_text(json.dumps(replies, indent=2) + "\n", encoding="utf-8")


def _check_count(count: int) -> None:
    if not 1 <= count <= _MOST:
        raise TaskError(f"the number of generated tasks must be 1 to {_MOST}, got {count}")


# --- JSON --------------------------------------------------------------------------------------------------------


def _replies(presses: Sequence[Press]) -> Iterator[dict[str, str]]:
    for press in presses:
        thought = f"{press.verb} {press.text}."
        yield {"thought": thought, "action": f"click(start_box='({press.point.x},{press.point.y})')"}
    yield {"thought": "Done.", "action": "finished()"}


def task_json(task_id: str, plan: Plan) -> dict[str, Any]:
    """Return a plan as a task in OSWorld's format."""
    programs = ["xmessage" if isinstance(one.window, Message) else "yad" for one in plan.windows]
    return {
        "id": task_id,
        "snapshot": programs[0],
        "instruction": plan.instruction,
        "source": "arpo_verl",
        "config": list(_steps(plan.windows)),
        "trajectory": "trajectories/",
        "related_apps": sorted(set(programs)),
        "evaluator": {
            "func": "exact_match",
            "result": {
                "type": "vm_command_line",
                "command": plan.evaluated.format(lines=len(plan.answer)),
                "shell": True,
            },
            "expected": {"type": "rule", "rules": {"expected": "".join(f"{line}\n" for line in plan.answer)}},
        },
        "proxy": False,
        "fixed_ip": False,
        "possibility_of_env_change": "low",
    }


def _steps(windows: Sequence[Opened]) -> Iterator[dict[str, Any]]:
    yield {"type": "execute", "parameters": {"command": ["sh", "-c", _NO_TERMINAL]}}
    if any(isinstance(one.window, Message) for one in windows):
        offer = ["python", "-c", "from arpo_guest.fonts import offer; offer()"]
        yield {"type": "execute", "parameters": {"command": offer}}
    for one in windows:
        command = f"({one.window.command(one.at)}) {one.then}"
        yield {"type": "launch", "parameters": {"command": command, "shell": True}}
        texts = [tuple(label.box) for label in one.window.labels(one.at)[1:]]
        require = f'require("{one.window.title}", 0, {texts})'
        yield {
            "type": "execute_with_verification",
            "parameters": {
                "command": ["true"],
                "verification": {"command_success": f"python -c 'from arpo_guest.drawn import require; {require}'"},
                "max_wait_time": 30,
                "check_interval": 0.02,
            },
        }
