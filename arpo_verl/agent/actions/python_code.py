"""Parse Python that a model or its program wrote into statements, within bounds. It is never run here."""

from __future__ import annotations

import ast
import re

from arpo_verl.agent.actions.calls import excerpt
from arpo_verl.errors import ActionParseError

# Comments and texts, each up to its end, the end of its line or the end of the code.
_PART = re.compile(
    r"#[^\n]*|([rRbBfFuU]{0,2})(?:"
    r"'''(?:[^'\\]++|\\.|'(?!''))*+(?:''')?|\"\"\"(?:[^\"\\]++|\\.|\"(?!\"\"))*+(?:\"\"\")?"
    r"|'(?:[^'\\\n]++|\\.)*+'?|\"(?:[^\"\\\n]++|\\.)*+\"?)",
    re.DOTALL,
)
_UNKNOWN_ESCAPE = re.compile(r"(\\[\\'\"\nabfnrtv0-3xNuU])|\\")


def statements(code: str, most_characters: int) -> list[ast.stmt]:
    """Return the statements of the code.

    Args:
        most_characters: limit without comments and quoted text. It limits the work of Python's parser.

    Raises:
        ActionParseError: the code is longer, or is not Python.
    """
    if len(_PART.sub(lambda part: "" if part[0].startswith("#") else "''", code)) > most_characters:
        raise ActionParseError(f"the code must have at most {most_characters} characters beside its texts, got more")
    readable = _PART.sub(_readable, code)
    try:
        return ast.parse(readable).body
    except SyntaxError as error:
        raise ActionParseError(f"the code must be Python: {excerpt(error.msg)}, got {excerpt(code)}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte, or too deep nesting
        raise ActionParseError(f"the code must be Python of sensible size, got {excerpt(code)}") from error


def _readable(part: re.Match[str]) -> str:
    """Write a text so that Python's parser reads it without a warning: an unknown escape keeps its backslash."""
    if part[0].startswith("#"):
        return ""
    if part[1].lower() not in ("", "r"):
        raise ActionParseError(f"a text must stand in plain quotes, got {excerpt(part[0])}")
    return part[0] if part[1] else _UNKNOWN_ESCAPE.sub(lambda escape: escape[1] or "\\\\", part[0])


def constant(node: ast.expr) -> str | int | float | None:
    """Return the value of a number, a text, True, False or None.

    Raises:
        ActionParseError: the node is something else.
    """
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise ActionParseError(f"an argument must be a number, a text or a list of keys, got {type(node).__name__}")
