"""This module computes whole numbers as `$((...))` does."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

MAX_SOURCE = 200
MOST = 2**63
_ALLOWED = re.compile(r"[\w\s+\-*/%()]*")


def compute(source: str, look_up: Callable[[str], str | None]) -> int | None:
    """Return the value of an expression of `+ - * / %`; None if it has more than these or an unknown variable.

    Args:
        look_up: function from a variable's name to its value.
    """
    source = re.sub(r"\$\{(\w+)\}|\$(\w+)", r"\1\2", source).strip()
    if len(source) > MAX_SOURCE or not _ALLOWED.fullmatch(source):
        return None
    try:
        return _value(ast.parse(source, mode="eval").body, look_up)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr, look_up: Callable[[str], str | None]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return int(look_up(node.id) or "no number")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand, look_up)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        value = _apply(node.op, _value(node.left, look_up), _value(node.right, look_up))
        if abs(value) < MOST:
            return value
    raise ValueError(ast.dump(node))


def _apply(operator: ast.operator, left: int, right: int) -> int:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # towards zero, as in a shell
    if isinstance(operator, ast.Div):
        return quotient
    if isinstance(operator, ast.Mod):
        return left - quotient * right
    raise ValueError(ast.dump(operator))
