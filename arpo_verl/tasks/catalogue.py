"""The catalogue has the names that the installed OSWorld client knows (set-up steps, getters, metrics), and our own
ones for bundles, each with what it needs. We read them from the client's source: an import takes seconds and loads
OpenCV, pandas and Playwright."""

from __future__ import annotations

import ast
import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from importlib.resources import files
from pathlib import Path

from arpo_verl.tasks.signatures import LIST, NUMBER, TEXT, Use, use_of, use_of_call

logger = logging.getLogger(__name__)

# These methods of the client only raise NotImplementedError.
_UNWRITTEN_STEPS = {"_tidy_desktop_setup", "_act_setup", "_replay_setup"}
# What getters read without an annotation; all else is text.
_TEXT = Use(frozenset({TEXT}))
_TEXTS, _NUMBER = Use(frozenset({TEXT, LIST}), items=_TEXT), Use(frozenset({TEXT, NUMBER}))
_VALUES = {
    "command": _TEXTS,
    "diff_range_in_minutes": _NUMBER,
    "parse_keys": Use(frozenset({LIST})),
    "partIndex": _NUMBER,
    "rules": Use(),
    "slide_index": _NUMBER,
}

Uses = Mapping[str, Callable[[], Use]]


@dataclass(frozen=True)
class Catalogue:
    """A task file may use these names. Each returns what its function needs of an object with all arguments."""

    setup_steps: Uses
    getters: Uses
    metrics: Uses


@lru_cache(maxsize=1)
def installed_catalogue() -> Catalogue | None:
    """Return the names of the installed OSWorld client; None without one (only the workers' Python may have it)."""
    spec = importlib.util.find_spec("desktop_env")
    if spec is None or spec.origin is None:
        logger.info("desktop-env is not installed here, so steps, getters and metrics are not checked")
        return None
    root = Path(spec.origin).parent
    bundles = Path(str(files("arpo_verl.desktops.osworld")), "bundles.py")
    methods = _functions(root / "controllers" / "setup.py") | _functions(bundles)
    methods["_command_setup"] = methods["_execute_setup"]  # which is all that it calls
    getters, metrics = _imported(root / "evaluators" / "getters"), _imported(root / "evaluators" / "metrics")
    return Catalogue(
        {
            name[1:-6]: cache(partial(use_of_call, methods[name]))
            for name in methods
            if name.startswith("_") and name.endswith("_setup") and name not in _UNWRITTEN_STEPS
        },
        {n.removeprefix("get_"): cache(partial(_getter, getters[n])) for n in getters if n.startswith("get_")},
        {name: cache(partial(use_of_call, metrics[name])) for name in metrics},
    )


def _getter(function: ast.FunctionDef) -> Use:
    """Return what a getter needs of its object, which it gets after the desktop."""
    use = use_of(function.body, function.args.args[1].arg) if len(function.args.args) > 1 else Use()
    several = {"path": _TEXTS, "dest": _TEXTS} if {"multi", "path_list"} & use.keys.keys() else {}
    values = {key: (_VALUES | several).get(key, _TEXT) for key in use.needed if not use.keys[key].kinds}
    return replace(use, keys={**use.keys, **values})


def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Return the functions of a source file and the methods of its classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    return {node.name: node for body in bodies for node in body if isinstance(node, ast.FunctionDef)}


def _imported(package: Path) -> dict[str, ast.FunctionDef]:
    """Return the functions that a package defines or imports from its own modules."""
    found = _functions(package / "__init__.py")
    for node in ast.walk(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (package / f"{node.module}.py").is_file():
            functions = _functions(package / f"{node.module}.py")
            found |= {one.asname or one.name: functions[one.name] for one in node.names if one.name in functions}
    return found
