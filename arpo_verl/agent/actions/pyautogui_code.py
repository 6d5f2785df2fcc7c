"""Check pyautogui code that an agent's own program sends to a desktop, and keep only actions.

Programs for OSWorld act by code: clicks, keys, text, and pauses between them. The same code could do anything that
Python can. We read it and never run it: only calls of pyautogui with plain arguments pass.
"""

from __future__ import annotations

import ast
import re

from arpo_verl.agent.actions.calls import excerpt
from arpo_verl.errors import ActionParseError

MAX_CODE_CHARACTERS = 4000
"""Longest code of one request, without its texts. OSWorld's own agents write some hundred characters."""

_MOUSE = "click leftClick rightClick middleClick doubleClick tripleClick mouseDown mouseUp moveTo move moveRel"
_MOUSE += " dragTo drag dragRel scroll vscroll hscroll position"
_KEYS = "write typewrite press keyDown keyUp hotkey"
_FUNCTIONS = {
    "pyautogui": frozenset([*_MOUSE.split(), *_KEYS.split(), "sleep", "size"]),
    "time": frozenset({"sleep"}),
    "pyperclip": frozenset({"copy"}),
}
_SETTINGS = frozenset({"FAILSAFE", "PAUSE"})
_QUESTIONS = frozenset({"print(platform.system())", "print(pyautogui.position())", "print(pyautogui.size())"})
"""Questions of OSWorld's client. Only the modules in them may be imported."""
_MODULES = frozenset({*_FUNCTIONS, "platform"})
# Comments and texts, each up to its end, the end of its line or the end of the code.
_PART = re.compile(
    r"#[^\n]*|([rRbBfFuU]{0,2})(?:"
    r"'''(?:[^'\\]++|\\.|'(?!''))*+(?:''')?|\"\"\"(?:[^\"\\]++|\\.|\"(?!\"\"))*+(?:\"\"\")?"
    r"|'(?:[^'\\\n]++|\\.)*+'?|\"(?:[^\"\\\n]++|\\.)*+\"?)",
    re.DOTALL,
)
_UNKNOWN_ESCAPE = re.compile(r"(\\[\\'\"\nabfnrtv0-3xNuU])|\\")


def actions_alone(code: str) -> str:
    """Return the code as we understood it, if it contains only actions.

    Raises:
        ActionParseError: it contains more, or is not Python; the message says what.
    """
    read = _statements(code)
    try:
        for statement in read:
            _check(statement)
        return "\n".join(map(ast.unparse, read))
    except ActionParseError:
        raise
    except (RecursionError, ValueError) as error:  # ValueError: a number that Python cannot write
        raise ActionParseError("the code must be of sensible depth and numbers, got other") from error


def _check(statement: ast.stmt) -> None:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):  # a lone text is a comment
            return
        case ast.Import(names=names) if all(name.name in _MODULES and name.asname is None for name in names):
            return
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="pyautogui"), attr=name)], value=ast.Constant()) if (
            name in _SETTINGS
        ):
            return
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) as call) if (
            name in _FUNCTIONS.get(module, ())
        ):
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                _check_argument(argument)
            return
        case ast.Expr() if ast.unparse(statement) in _QUESTIONS:
            return
    said = ast.unparse(statement)[:80]
    raise ActionParseError(f"the code must be calls of pyautogui, time.sleep or pyperclip.copy alone, got {said!r}")


def _check_argument(node: ast.expr) -> None:
    """Accept a constant, a list of constants, or a way to move of pyautogui, such as `pyautogui.easeInQuad`."""
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                _constant(part)
        case ast.Attribute(value=ast.Name(id="pyautogui"), attr=name) if name.startswith("ease") or name == "linear":
            return
        case _:
            _constant(node)


def _statements(code: str) -> list[ast.stmt]:
    """Return the statements of the code.

    Raises:
        ActionParseError: the code is longer, or is not Python.
    """
    if len(_PART.sub(lambda part: "" if part[0].startswith("#") else "''", code)) > MAX_CODE_CHARACTERS:
        raise ActionParseError(
            f"the code must have at most {MAX_CODE_CHARACTERS} characters beside its texts, got more"
        )
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


def _constant(node: ast.expr) -> str | int | float | None:
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
