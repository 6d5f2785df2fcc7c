"""Reads the prompts that models were trained with from the source of OSWorld's own agents.

That source is `mm_agents`, in the package `desktop-env` (OSWorld, Apache-2.0). We read it whenever we build a prompt,
since the model never saw any other words. We do not import the modules: they import clients of model services that
training does not need, and two of them a module that the package lacks. So we take only the assignments that make up a
prompt from the parsed source, and run nothing else.

We read module-level constants, or the local variables of a function. `tests/agent/models/test_official_words.py`
compares the results with the messages that the agents themselves send.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arpo_verl.errors import MissingDependencyError
from arpo_verl.versions import TESTED, pip_install

PACKAGE = "mm_agents"


@functools.cache
def constants(file: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    """Return module-level constants of one of the package's files, by name, in the order of `names`.

    Raises:
        MissingDependencyError: the file or a name is missing.
    """
    found = assigned(file, None, names, {})
    if len(found) < len(names):
        raise MissingDependencyError(_advice(f"{PACKAGE}/{file} has no {', '.join(set(names) - set(found))}"))
    return found


def assigned(file: str, function: str | None, names: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a function's assignments to these variables, run in order, without built-in functions.

    Args:
        function: its name; None means the module itself.
        given: other variables that the assignments need.

    Raises:
        MissingDependencyError: the file is missing, or needs other variables.
    """
    variables = dict(given)
    with understood(file):
        exec(_assignments(file, function, names), {"__builtins__": {}}, variables)
        return {name: variables[name] for name in names if name in variables}


@functools.cache
def _assignments(file: str, function: str | None, names: tuple[str, ...]) -> Any:
    module = _source(file)
    found = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == function]
    taken: dict[str, ast.stmt] = {}
    for statement in module.body if function is None else found[0].body if found else []:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in names:
                taken[name] = statement
    return compile(ast.Module(list(taken.values()), type_ignores=[]), f"{PACKAGE}/{file}", "exec")


def _source(file: str) -> ast.Module:
    try:
        spec = importlib.util.find_spec(PACKAGE)  # for a top-level package this imports nothing
    except ValueError:
        spec = None
    folders = (spec.submodule_search_locations if spec is not None else None) or []
    for folder in folders:
        path = Path(folder) / file
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    raise MissingDependencyError(_advice(f"{PACKAGE}/{file} is not installed"))


@contextlib.contextmanager
def understood(file: str) -> Iterator[None]:
    """Guard the use of the prompts' parts: another version of the package may build its prompt from other parts.

    Raises:
        MissingDependencyError: the parts are not as expected.
    """
    try:
        yield
    except (AttributeError, LookupError, NameError, StopIteration, TypeError) as error:
        raise MissingDependencyError(_advice(f"{PACKAGE}/{file} is not as expected ({error!r})")) from error


def _advice(problem: str) -> str:
    client = pip_install(f"desktop-env=={TESTED['desktop-env']}", options=["--no-deps"])
    return (
        f"gui_agent.model_family takes a model's prompt from OSWorld's agents, but {problem}; run arpo-verl "
        f"install-osworld, or {client}, for every Python that runs rollouts"
    )
