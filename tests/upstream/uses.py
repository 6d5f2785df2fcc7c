"""What the package takes from upstream, read off its source: what it imports, looks up, overrides and inherits.

A name is `package.module` or `package.module:attribute[.attribute]`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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
# What every class has, and what abc and typing keep in one.
_EVERYWHERE = {name for name in dir(object) if name != "__init__"} | {"__abstractmethods__", "_abc_impl"}
_EVERYWHERE |= {"__annotations__", "__module__", "__orig_bases__", "__parameters__"}
# What pydantic keeps in one.
_EVERYWHERE |= {"__class_vars__", "__private_attributes__", "__signature__"}
_PYDANTIC = "complete computed_fields core_schema custom_init decorators extra_info fields generic_metadata"
_PYDANTIC += " parent_namespace post_init serializer setattr_handlers validator"
_EVERYWHERE |= {f"__pydantic_{name}__" for name in _PYDANTIC.split()}


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


def within(scope: ast.AST, *, functions: bool = True) -> Iterator[ast.AST]:
    """Every node below a scope, on request without its functions' insides."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if functions or not isinstance(child, _Function):
            yield from within(child, functions=functions)


def imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The upstream names that these imports bring, by what they are called here."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and is_upstream(node.module):
            found |= {name.asname or name.name: f"{node.module}:{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.asname or name.name: name.name for name in node.names if is_upstream(name.name)}
    return found


@cache
def imported_at_top(module: str) -> dict[str, str]:
    """As `imported`, of one of our modules."""
    return imported(within(modules()[module], functions=False))


@cache
def aliases(tree: ast.AST) -> dict[str, str]:
    """What a module calls upstream names at its top, one that another module of ours hands on too."""
    nodes = list(within(tree, functions=False))
    found = imported(nodes)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in modules():
            theirs = imported_at_top(node.module)
            found |= {name.asname or name.name: theirs[name.name] for name in node.names if name.name in theirs}
    return found


def scopes(tree: ast.AST) -> Iterator[tuple[ast.AST, Mapping[str, str]]]:
    """A module and its functions, with the upstream names that each knows: by import, or by a parameter's type."""
    top = aliases(tree)
    yield tree, top
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            typed = {a.arg: top[ast.unparse(a.annotation)] for a in arguments if _is_one_of(a.annotation, top)}
            yield node, typed | imported(within(node))


def name_of(node: ast.AST, known: Mapping[str, str]) -> str | None:
    """The upstream name that an expression is: one that is known, or an attribute of one."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
        base = known[node.value.id]
        return f"{base}{'.' if ':' in base else ':'}{node.attr}"
    return known.get(node.id) if isinstance(node, ast.Name) else None


def named_in(tree: ast.AST) -> Iterator[str]:
    """What a module imports, names in a string, or looks up on either or on a parameter annotated with one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            if not node.value.startswith(_OPTION):
                yield node.value
    for scope, known in scopes(tree):
        yield from known.values()
        yield from filter(None, (name_of(node, known) for node in within(scope)))


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Each call of an upstream name: our module, the name, the call."""
    for module, tree in modules().items():
        for scope, known in () if module.startswith(_OF_ANOTHER_VERL) else scopes(tree):
            for node in within(scope):
                if isinstance(node, ast.Call) and (name := name_of(node.func, known)):
                    yield module, name, node


def _is_one_of(annotation: ast.expr | None, alias: Mapping[str, str]) -> bool:
    return annotation is not None and ast.unparse(annotation) in alias


def _extends(node: ast.ClassDef, alias: Mapping[str, str]) -> bool:
    return any(_is_one_of(base, alias) for base in node.bases)


def inherited_in(module: str, tree: ast.AST) -> Iterator[str]:
    """What a module's classes override of an upstream base, and what they use of it through `self`."""
    alias = aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and _extends(node, alias):
            cls = getattr(importlib.import_module(module), node.name)
            used = {attr.attr for attr in ast.walk(node) if _is_of_self(attr)}
            for base in (base for base in cls.__mro__ if is_upstream(base.__module__)):
                pydantics = {"model_config"} if hasattr(base, "model_fields") else set()
                touched = {*used, *vars(cls)} & attributes(base) - _EVERYWHERE - pydantics
                full = f"{base.__module__}:{base.__qualname__}"
                yield from (full, *(f"{full}.{name}" for name in touched))


def _is_of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "super()")


@cache
def attributes(cls: type) -> set[str]:
    """A class's own names, and those that its methods give to `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    stored = {n.attr for n in ast.walk(tree) if _is_of_self(n) and isinstance(n.ctx, ast.Store)}
    return {*vars(cls), *vars(cls).get("__annotations__", {}), *getattr(cls, "model_fields", ()), *stored}


def uses() -> dict[str, list[str]]:
    """Every upstream name, and the modules of the package that use it."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules().items():
        names = () if module.startswith(_OF_ANOTHER_VERL) else named_in(tree)
        for name in (*names, *inherited_in(module, tree)):
            found[name].add(module)
    return {name: sorted(found[name]) for name in sorted(found)}


def resolve(name: str) -> Any:
    """The upstream thing itself; None for an attribute that only the instances of its class have.

    Raises:
        ImportError: its module is gone.
        AttributeError: it is gone.
    """
    module, _, path = name.partition(":")
    thing: Any = importlib.import_module(module)
    for part in filter(None, path.split(".")):
        thing = thing.__ray_metadata__.modified_class if hasattr(thing, "__ray_metadata__") else thing
        if isinstance(thing, type) and not hasattr(thing, part):
            if any("__getattr__" in vars(base) or part in attributes(base) for base in thing.__mro__[:-1]):
                return None
            raise AttributeError(f"{name}: {thing.__name__} has no {part}")
        is_module = isinstance(thing, ModuleType) and not hasattr(thing, part)
        thing = importlib.import_module(f"{thing.__name__}.{part}") if is_module else getattr(thing, part)
    return thing


def overrides() -> Iterator[tuple[str, Any, Any]]:
    """Every method of upstream's that a class of ours overrides: its name, upstream's and ours."""
    for module, tree in modules().items():
        alias = aliases(tree)
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and _extends(node, alias)]
        with contextlib.suppress(ImportError):  # the contract of the name that is missing says so
            for cls in (getattr(importlib.import_module(module), name) for name in classes):
                for base in (base for base in cls.__mro__ if is_upstream(base.__module__)):
                    for name in vars(cls).keys() & vars(base).keys() - _EVERYWHERE - {"__init__"}:
                        yield f"{base.__module__}:{base.__qualname__}.{name}", vars(base)[name], vars(cls)[name]


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
