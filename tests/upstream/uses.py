"""What the package takes from upstream, read off its source: what it imports, names in a string, or looks up on either.

mypy checks what it overrides, inherits and passes of veRL and Transformers, by their types; not whether an override
names its arguments alike (`names.py: PASSED`). A name is `package.module` or `package.module:attribute[.attribute]`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import arpo_verl

PACKAGE = Path(arpo_verl.__file__).parent
ROOTS = ("verl", "transfer_queue", "tensordict", "transformers", "vllm", "desktop_env", "mm_agents", "qwen_agent")
_NAME = re.compile(rf"(?:{'|'.join(ROOTS)})(?:\.\w+)+(?::\w+(?:\.\w+)*)?")
# A section of the recipe.
_OPTION = "transfer_queue.backend."
# They read, and train with, EasyR1: another package that is called verl.
_OF_ANOTHER_VERL = ("arpo_verl.tools.migration.", "arpo_verl.easyr1.")


def is_upstream(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in ROOTS


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, by its dotted name."""
    files = {path.relative_to(PACKAGE.parent).with_suffix(""): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {
        ".".join(name.parts).removesuffix(".__init__"): ast.parse(f.read_text("utf-8")) for name, f in files.items()
    }


_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def outside_functions(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        yield child
        yield from () if isinstance(child, _Function) else outside_functions(child)


def imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The upstream names that these imports bring, by what they are called here."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and is_upstream(node.module):
            found |= {name.asname or name.name: f"{node.module}:{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.asname or name.name: name.name for name in node.names if is_upstream(name.name)}
    return found


def named_in(tree: ast.AST) -> Iterator[str]:
    """The upstream names of a module."""
    at_top = list(outside_functions(tree))
    scopes = [at_top, *(list(ast.walk(node)) for node in ast.walk(tree) if isinstance(node, _Function))]
    for nodes in scopes:
        known = imported(at_top) | imported(nodes)
        yield from known.values()
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
                yield from [] if node.value.startswith(_OPTION) else [node.value]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
                base = known[node.value.id]
                yield f"{base}{'.' if ':' in base else ':'}{node.attr}"


def uses() -> dict[str, list[str]]:
    """Every upstream name, and the modules of the package that use it."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules().items():
        for name in () if module.startswith(_OF_ANOTHER_VERL) else named_in(tree):
            found[name].add(module)
    return {name: sorted(found[name]) for name in sorted(found)}


def resolve(name: str) -> Any:
    """The upstream thing itself.

    Raises:
        ImportError: its module is gone.
        AttributeError: it is gone.
    """
    module, _, path = name.partition(":")
    thing: Any = importlib.import_module(module)
    for part in filter(None, path.split(".")):
        thing = thing.__ray_metadata__.modified_class if hasattr(thing, "__ray_metadata__") else thing
        is_module = isinstance(thing, ModuleType) and not hasattr(thing, part)
        thing = importlib.import_module(f"{thing.__name__}.{part}") if is_module else getattr(thing, part)
    return thing


def source(name: str) -> str:
    """The source of a module, class or function; a module's without importing it."""
    if ":" not in name:
        root, *parts = name.split(".")
        spec = importlib.util.find_spec(root)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"no package {root}", name=root)
        path = Path(spec.origin).parent.joinpath(*parts)
        return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    thing = resolve(name)
    return inspect.getsource(inspect.unwrap(thing))
