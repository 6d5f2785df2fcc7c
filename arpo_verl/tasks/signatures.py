"""Read from a function's source what it needs of its arguments: names, JSON types, and the keys of objects. Pure.

OSWorld's set-up steps have typed arguments. Its getters and metrics get an object, and read its keys inside.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

TEXT, NUMBER, LIST, OBJECT = "text", "a number", "a list", "an object"
KINDS = {"str": TEXT, "int": NUMBER, "float": NUMBER, "NoneType": "null", "list": LIST, "dict": OBJECT}
KINDS |= {"List": LIST, "Dict": OBJECT, "Mapping": OBJECT}
"""The names of types, also in annotations, and how a message says them. Any value can be true or false."""


@dataclass(frozen=True)
class Use:
    """What a function needs of a value: of one argument, or of an object with all of its arguments."""

    kinds: frozenset[str] = frozenset()
    """The JSON types it can have, in words; empty if any."""
    keys: Mapping[str, Use] = field(default_factory=dict)
    """What the function needs of the values of keys that it may read; of a call, the arguments in their order."""
    needed: frozenset[str] = frozenset()
    """Keys that it reads in any case."""
    closed: bool = False
    """Whether another key is an error."""
    num_positional: int = 0
    """Of a call, how many arguments can be given by position."""
    items: Use | None = None
    """What it needs of a list's items."""


def use_of_call(function: ast.FunctionDef) -> Use:
    """Return what a function needs of an object with its arguments."""
    given = [one for one in function.args.args if one.arg != "self"]
    defaults = dict(zip([one.arg for one in given[::-1]], function.args.defaults[::-1], strict=False))
    needed = {one.arg for one in given} - defaults.keys()
    keys = {one.arg: use_of(function.body, one.arg, one.annotation) for one in given}
    for name, default in defaults.items():
        if isinstance(default, ast.Constant) and default.value is None and keys[name].kinds:
            keys[name] = replace(keys[name], kinds=keys[name].kinds | {KINDS["NoneType"]})
    others = function.args.kwarg
    rest = Use() if others is None else use_of(function.body, others.arg)
    return Use(
        keys={**keys, **rest.keys}, needed=rest.needed | needed, closed=others is None, num_positional=len(given)
    )


def use_of(body: list[ast.stmt], name: str, hint: ast.expr | None = None, deep: int = 2) -> Use:
    """Return what statements need of the value of the variable `name`, and of its parts `deep` levels down.

    Args:
        hint: its annotation, if any.
    """
    nodes = [node for statement in body for node in ast.walk(statement)]
    kinds = {KINDS.get(_name(one), "") for one in _members(hint)}
    value, item = _inside(hint, OBJECT), _inside(hint, LIST)
    keys = {key: use_of([], "", value) for key in _keys(nodes, name)}
    items = None if item is None else use_of([], "", item)
    for node in nodes if deep else ():
        match node:
            case ast.Assign([ast.Name(other)], ast.Subscript(ast.Name(read), ast.Constant(str(key)))):
                if read == name != other:
                    keys[key] = use_of(body, other, value, deep - 1)
            case ast.For(ast.Name(other), ast.Name(read)) if read == name != other:
                items = use_of(node.body, other, item, deep - 1)
            case ast.For(ast.Name(other), ast.Subscript(ast.Name(read), ast.Constant(str(key)))) if read == name:
                keys[key] = Use(frozenset({LIST}), items=use_of(node.body, other, _inside(value, LIST), deep - 1))
            case ast.Call(ast.Name("isinstance"), [ast.Name(asked), *_]) if asked == name and kinds:
                kinds.add(TEXT)
    if keys or (items and items.keys):
        kinds = kinds - {LIST, TEXT} | {OBJECT} if keys else kinds | {LIST}  # what is read is true, a hint may not be
    return Use(frozenset(() if "" in kinds else kinds), keys, frozenset(_sure(body, name)), items=items)


def _keys(nodes: Iterable[ast.AST], name: str) -> Iterator[str]:
    """Yield the keys of a variable that code reads or looks for."""
    for node in nodes:
        match node:
            case (
                ast.Subscript(ast.Name(variable), ast.Constant(str(key)), ast.Load())
                | ast.Call(ast.Attribute(ast.Name(variable), "get"), [ast.Constant(str(key)), *_])
                | ast.Compare(ast.Constant(str(key)), [ast.In() | ast.NotIn()], [ast.Name(variable)])
            ) if variable == name:
                yield key


def _sure(code: ast.AST | list[ast.stmt], name: str) -> set[str]:
    """Return the keys of a variable that code reads in any case, if it neither raises nor returns nothing."""
    match code:
        case ast.Subscript(ast.Name(variable), ast.Constant(str(key)), ast.Load()) if variable == name:
            return {key}
        case ast.FunctionDef() | ast.ExceptHandler():
            return set()
        case ast.BoolOp(_, [part, *_]):
            return _sure(part, name)
        case ast.For(_, iterated) if not (isinstance(iterated, ast.Call) and _name(iterated.func) == "range"):
            return _sure(iterated, name)
        case ast.If(test, then, other) | ast.IfExp(test, then, other):
            arms = [_sure(arm, name) for arm in (then, other) if isinstance(arm, ast.AST) or not _fails(arm)]
            return _sure(test, name).union(set.intersection(*arms) if arms else ())
    parts = code if isinstance(code, list) else ast.iter_child_nodes(code)
    return set().union(*(_sure(part, name) for part in parts))


def _fails(body: list[ast.stmt]) -> bool:
    """Return whether statements end with an error or without a result."""
    match body[-1:]:
        case [ast.Raise() | ast.Continue() | ast.Return(None | ast.Constant(None | 0 | ""))]:
            return True
    return False


def _name(node: Any) -> str:
    return getattr(node, "id", "NoneType" if isinstance(node, ast.Constant) else "")


def _members(hint: ast.expr | None) -> list[ast.expr]:
    """Return the types of a union, without what is inside of them."""
    match hint:
        case ast.BinOp(left, ast.BitOr(), right) | ast.Subscript(ast.Name("Union"), ast.Tuple([left, right])):
            return [*_members(left), *_members(right)]
        case ast.Subscript(ast.Name("Optional"), part):
            return [*_members(part), ast.Constant(None)]
        case ast.Subscript(outer):
            return [outer]
    return [] if hint is None else [hint]


def _inside(hint: ast.expr | None, kind: str) -> ast.expr | None:
    """Return the type of a list's items or of an object's values."""
    for node in ast.walk(hint) if hint else ():
        match node:
            case ast.Subscript(ast.Name(outer), part) if KINDS.get(outer) == kind:
                return part.elts[1] if isinstance(part, ast.Tuple) else part
    return None
