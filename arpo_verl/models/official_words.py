"""The words that models were trained with, as OSWorld's own agents carry them.

They are read from the source of `mm_agents`, which the package `desktop-env` ships (OSWorld, Apache-2.0), whenever a
prompt is built: a word that differs is a word that the model never saw. The modules are not imported. They import
clients of model services that no training needs, and two of them a module that the package lacks; so the assignments
that make up a prompt are taken from the parsed source, and nothing else of it runs.

Read are module-level constants, or the local variables of a function; `tests/models/test_official_words.py` compares
what comes out with the messages that the agents themselves send.
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
    """Module-level constants of one of the package's files, by name, in the order of `names`.

    Raises:
        MissingDependencyError: the file or a name is not there.
    """
    found = assigned(file, None, names, {})
    if len(found) < len(names):
        raise MissingDependencyError(_advice(f"{PACKAGE}/{file} has no {', '.join(set(names) - set(found))}"))
    return found


def assigned(file: str, function: str | None, names: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a function's assignments to these variables come to, made in order, without any built-in function.

    Args:
        function: its name; None: the module itself.
        given: the other variables that they need.

    Raises:
        MissingDependencyError: the file is not there, or it needs more.
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
def understood(file: str) -> Iterator[None]:
    """Around what is made of the words: another version of the package may build its prompt of other parts.

    Raises:
        MissingDependencyError: it does.
    """
    try:
        yield
    except (AttributeError, LookupError, NameError, StopIteration, TypeError) as error:
        raise MissingDependencyError(_advice(f"{PACKAGE}/{file} is not as expected ({error!r})")) from error


def _advice(problem: str) -> str:
    client = pip_install(f"desktop-env=={TESTED['desktop-env']}", options=["--no-deps"])
    return (
        f"gui_agent.model_family takes a model's own words from OSWorld's agents, but {problem}: arpo-verl "
        f"install-osworld, or {client}, for every Python that runs rollouts"
    )
