"""Check pyautogui code that an agent's own program sends to a desktop, and keep only actions.

Programs for OSWorld act by code: clicks, keys, text, and pauses between them. The same code could do anything that
Python can. We read it and never run it: only calls of pyautogui with plain arguments pass.
"""

from __future__ import annotations

import ast

from arpo_verl.agent.actions.python_code import constant, statements
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


def actions_alone(code: str) -> str:
    """Return the code as we understood it, if it contains only actions.

    Raises:
        ActionParseError: it contains more, or is not Python; the message says what.
    """
    read = statements(code, MAX_CODE_CHARACTERS)
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
                constant(part)
        case ast.Attribute(value=ast.Name(id="pyautogui"), attr=name) if name.startswith("ease") or name == "linear":
            return
        case _:
            constant(node)
