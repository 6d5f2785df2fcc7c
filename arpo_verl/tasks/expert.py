"""The scripted expert has replies that solve each task of the shipped suites on a 640x480 screen.

`expert.json` (for `embedded`) and `expert_long.json` (for `embedded_long`) map a task's id to its replies in order:
each has a `thought` and an `action` in the UI-TARS-1.5 grammar with coordinates in screen pixels. A blank line
separates several actions of one reply, as the model writes them. A long task's replies have one action each, and a
thought that says how far it is.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from arpo_verl.agent.actions.reply import Reply
from arpo_verl.agent.actions.ui_tars import parse_reply
from arpo_verl.errors import TaskError
from arpo_verl.lib.config import did_you_mean
from arpo_verl.tasks.loader import EMBEDDED, EMBEDDED_LONG
from arpo_verl.types import Size

EXPERT_PATH = Path(__file__).with_name("expert.json")
_PATHS = {EMBEDDED: EXPERT_PATH, EMBEDDED_LONG: EXPERT_PATH.with_name("expert_long.json")}

EXPERT_SCREEN = Size(640, 480)
"""The screen of the scripts' coordinates."""


def expert_replies(task_id: str) -> list[Reply]:
    """Return the expert's replies to a task, in order, with points in pixels of `EXPERT_SCREEN`.

    The last reply ends the episode: with `Finish`, or with `Fail` if the task is infeasible.

    Raises:
        TaskError: the expert does not know the task.
    """
    scripts = {known: script for suite in _PATHS for known, script in _scripts(suite).items()}
    script = scripts.get(task_id)
    if script is None:
        known = f"; it knows the {len(scripts)} tasks of {' and '.join(_PATHS)}"
        hint = did_you_mean(task_id, scripts) or known
        raise TaskError(f"the expert has no script for the task {task_id!r}{hint}")
    texts = (f"Thought: {turn['thought']}\nAction: {turn['action']}" for turn in script)
    return [parse_reply(text, EXPERT_SCREEN, EXPERT_SCREEN) for text in texts]


def expert_task_ids(suite: str = EMBEDDED) -> list[str]:
    """Return the sorted ids of a shipped suite's tasks, all of which the expert solves."""
    return sorted(_scripts(suite))


@lru_cache
def _scripts(suite: str) -> dict[str, list[dict[str, str]]]:
    scripts: dict[str, list[dict[str, str]]] = json.loads(_PATHS[suite].read_text(encoding="utf-8"))
    return scripts
