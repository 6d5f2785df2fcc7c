"""`NAME:ARGUMENT` names a source of tasks beside files; NAME is an entry point of the group `arpo_verl.tasks`.

Your own package offers tasks by naming a function in its metadata:

    [project.entry-points."arpo_verl.tasks"]
    my_suite = "my_package.tasks:load"

We call `load("ARGUMENT")` with the text after the colon. It returns tasks in OSWorld's format: their JSON as mappings,
`Task`s, or a `TaskError` in place of a task that cannot be used. We check them as we check those of files. We import a
package only when it is named.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from arpo_verl.errors import ArpoError, TaskError
from arpo_verl.lib.config import did_you_mean
from arpo_verl.types import Task

GROUP = "arpo_verl.tasks"
BUILT_IN = {"cua_gym": "arpo_verl.tasks.cua_gym:load", "families": "arpo_verl.tasks.families:load"}
_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_.\-]*):(.*)", re.DOTALL)


def split_source(path: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Split a source into name and argument; None for a path. An existing file or folder is a path."""
    found = _NAMED.fullmatch(path) if isinstance(path, str) else None
    return None if found is None or Path(path).exists() else (found[1], found[2])


def source_tasks(name: str, argument: str) -> Iterator[tuple[str, Any, str]]:
    """Yield for each task of a source its place, for messages, its unchecked JSON, and its domain.

    Raises:
        TaskError: there is no such source, it cannot be loaded, or it fails.
    """
    where = f"{name}:{argument}"
    try:
        given = _load(name)(argument)
        if isinstance(given, (str, bytes, Mapping)) or not hasattr(given, "__iter__"):
            raise TaskError(f"the source {where} must return an iterable of tasks, got {type(given).__name__}")
        for number, one in enumerate(given):
            yield f"{where}[{number}]", _spec_of(one), one.domain if isinstance(one, Task) else name
    except ArpoError:
        raise
    except Exception as error:  # code of somebody else's
        raise TaskError(f"the source {where} failed: {type(error).__name__}: {error}") from error


def _spec_of(given: Any) -> Any:
    """Return a task's JSON as we send it to workers; for a `Task`, with its own id and instruction."""
    if isinstance(given, Task):
        given = {**given.spec, "id": given.task_id, "instruction": given.instruction}
    if not isinstance(given, Mapping):
        return given
    try:
        return json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return TaskError(f"a task must contain JSON values only: {error}")


def _load(name: str) -> Callable[[str], Any]:
    installed = {} if name in BUILT_IN else {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in BUILT_IN:  # without a look at every package's metadata, at each of a recipe's sources
        entry = EntryPoint(name, BUILT_IN[name], GROUP)
    elif name in installed:
        entry = installed[name]
    else:
        known = sorted({*BUILT_IN, *installed})
        way_out = f"; install the package that has it (an entry point of the group {GROUP!r}), or name a path"
        raise TaskError(
            f"{name!r} in NAME:ARGUMENT is not a source of tasks; there are {', '.join(known)}"
            f"{did_you_mean(name, known) or way_out}"
        )
    try:
        function: Any = entry.load()
    except Exception as error:  # code of somebody else's
        raise TaskError(
            f"the source {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise TaskError(f"the source {name!r} ({entry.value}) must be callable, got {type(function).__name__}")
    return function  # type: ignore[no-any-return]
