"""The words that UI-TARS-1.5, Qwen2.5-VL and Qwen3-VL were trained with, as OSWorld's own agents carry them.

They are read from the source of `mm_agents`, which the package `desktop-env` ships (OSWorld, Apache-2.0), whenever a
prompt is built: a word that differs is a word that the model never saw. The modules are not imported. They import
clients of model services that no training needs, and two of them a module that the package lacks; so the assignments
that make up a prompt are taken from the parsed source, and nothing else of it runs.

Read of `uitars15_v1.py` are module-level constants, of `qwen25vl_agent.py` and `qwen3vl_agent.py` local variables of
`predict`; `tests/rollout/test_official_words.py` compares what comes out with the messages that the agents themselves
send.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from arpo_verl.errors import MissingDependencyError
from arpo_verl.versions import TESTED, pip_install

PACKAGE = "mm_agents"
_UI_TARS_FILE = "uitars15_v1.py"
_UI_TARS_CONSTANTS = ("UITARS_NORMAL_ACTION_SPACE", "UITARS_CALL_USR_ACTION_SPACE", "UITARS_USR_PROMPT_THOUGHT")
_QWEN_FILES = {"qwen25_vl": "qwen25vl_agent.py", "qwen3_vl": "qwen3vl_agent.py"}
_QWEN_VARIABLES = (
    "description_prompt_lines",
    "description_prompt",
    "action_description_prompt",
    "tools_def",
    "system_prompt",
    "instruction_prompt",
)


class Words(NamedTuple):
    """What a model is told before it acts."""

    system: str
    user: str
    """The task and how to reply to it."""


def ui_tars_15(instruction: str, language: str) -> Words:
    """UI-TARS-1.5's prompt, with `call_user` in its action space.

    The agent leaves `call_user` out in the mode that evaluates this model (`qwen25vl_normal`); without it no infeasible
    task can be solved. Its line is that of the action space which has it.

    Raises:
        MissingDependencyError: the words are not installed.
    """
    constants = _constants(_UI_TARS_FILE, _UI_TARS_CONSTANTS)
    action_space, with_call_user, template = (constants[name] for name in _UI_TARS_CONSTANTS)
    with _understood(_UI_TARS_FILE):
        call_user = next(line for line in with_call_user.splitlines(keepends=True) if line.startswith("call_user("))
        user = template.format(action_space=action_space + call_user, language=language, instruction=instruction)
    return Words("You are a helpful assistant.", user)


def qwen(kind: str, instruction: str, previous_actions: str = "None") -> Words:
    """Qwen2.5-VL's or Qwen3-VL's `computer_use` tool and its call, and the task.

    Args:
        kind: `qwen25_vl` or `qwen3_vl`.
        instruction: the task's own words.
        previous_actions: those whose screenshots are no longer shown, a line each; the agent writes None for none.

    Raises:
        MissingDependencyError: the words are not installed.
    """
    variables: dict[str, Any] = {
        "json": json,
        "self": SimpleNamespace(coordinate_type="relative"),  # Qwen3-VL's thousandths, its agent's default
        "instruction": instruction,
        "previous_actions_str": previous_actions,
        # Named where coordinates are absolute.
        "processed_width": None,
        "processed_height": None,
    }
    code = _assignments(_QWEN_FILES[kind])
    with _understood(_QWEN_FILES[kind]):
        exec(code, {"__builtins__": {}}, variables)
        return Words(variables["system_prompt"], variables["instruction_prompt"])


@functools.cache
def _constants(file: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """Module-level literals by name."""
    found: dict[str, str] = {}
    for statement in _source(file).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in names:
                found[name] = ast.literal_eval(value)
    if len(found) < len(names):
        raise MissingDependencyError(_advice(f"{PACKAGE}/{file} has no {', '.join(set(names) - set(found))}"))
    return found


@functools.cache
def _assignments(file: str) -> Any:
    """The assignments of `predict` that make up its prompt, in order, compiled."""
    predict = [node for node in ast.walk(_source(file)) if isinstance(node, ast.FunctionDef) and node.name == "predict"]
    taken: dict[str, ast.stmt] = {}
    for statement in predict[0].body if predict else []:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in _QWEN_VARIABLES:
                taken[name] = statement
    return compile(ast.Module(list(taken.values()), type_ignores=[]), f"{PACKAGE}/{file}", "exec")


def _source(file: str) -> ast.Module:
    try:
        spec = importlib.util.find_spec(PACKAGE)  # of a top-level package: nothing is imported
    except ValueError:
        spec = None
    folders = (spec.submodule_search_locations if spec is not None else None) or []
    for folder in folders:
        path = Path(folder) / file
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    raise MissingDependencyError(_advice(f"{PACKAGE}/{file} is not installed"))


@contextlib.contextmanager
def _understood(file: str) -> Iterator[None]:
    """Another version of the package may build its prompt of other parts."""
    try:
        yield
    except (AttributeError, LookupError, NameError, StopIteration, TypeError) as error:
        raise MissingDependencyError(_advice(f"{PACKAGE}/{file} is not as expected ({error!r})")) from error


def _advice(problem: str) -> str:
    client = pip_install(f"desktop-env=={TESTED['desktop-env']}", options=["--no-deps"])
    return (
        f"gui_agent.prompt takes a model's own words from OSWorld's agents, but {problem}: arpo-verl install-osworld, "
        f"or {client}, for every Python that runs rollouts"
    )
