"""Read and write the grammar of OpenCUA: calls of pyautogui <-> typed actions.

A reply says what it does and then does it, after an optional thought:

    ## Action:
    Click the menu.

    ## Code:
    ```python
    pyautogui.click(x=123, y=456)
    ```

OSWorld's runner gives that code to the guest's Python. We run none of it. Python's own parser reads it, and each
statement must be a call of `_PARAMETERS` with numbers, texts and lists of texts as arguments. Anything else raises
`ActionParseError`. Coordinates are pixels of the resized image, or fractions of its sides.

Source: `mm_agents/opencua/opencua_agent.py`, with the coordinate type `qwen25`. `tests/support/reply_differences.py`
lists where we depart from it, and `tests/models/test_official_families.py` compares the two.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, get_args

from arpo_verl.actions.calls import excerpt, shown
from arpo_verl.actions.checks import MAX_CLICKS, MAX_KEYS, MAX_SCROLL_NOTCHES
from arpo_verl.actions.keys import parse_keys
from arpo_verl.actions.leftovers import refuse_leftovers
from arpo_verl.actions.pyautogui import SCROLL_NOTCHES
from arpo_verl.actions.python_code import constant, statements
from arpo_verl.actions.reply import MAX_ACTIONS, CoordinateFrame, Reply, check_length, unknown_action
from arpo_verl.errors import ActionParseError
from arpo_verl.types import (
    Action,
    Button,
    Click,
    Direction,
    Drag,
    Fail,
    Finish,
    Hotkey,
    Move,
    Point,
    Scroll,
    Size,
    TypeText,
    Wait,
)

MAX_CODE_CHARS = 1000
"""Longest code of a reply, without comments and quoted text: it limits the work of Python's parser."""

_CLICKS: Mapping[str, tuple[Button, int]] = {
    "click": ("left", 1),
    "rightClick": ("right", 1),
    "middleClick": ("middle", 1),
    "doubleClick": ("left", 2),
    "tripleClick": ("left", 3),
}
_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "click": ("x", "y", "clicks", "interval", "button", "duration"),
    **dict.fromkeys(("rightClick", "middleClick"), ("x", "y", "interval", "duration")),
    **dict.fromkeys(("doubleClick", "tripleClick"), ("x", "y", "interval", "button", "duration")),
    "moveTo": ("x", "y", "duration", "tween"),
    "dragTo": ("x", "y", "duration", "button"),
    **dict.fromkeys(("scroll", "vscroll", "hscroll"), ("clicks", "x", "y")),
    **dict.fromkeys(("write", "typewrite"), ("message", "interval")),
    "press": ("keys", "presses", "interval"),
    "hotkey": ("keys",),
    "wait": (),
    "terminate": ("status", "answer"),
    "sleep": (),
}
"""The functions that we read, with their parameters in pyautogui's order."""
_MODULES = {"wait": "computer", "terminate": "computer", "sleep": "time"}
"""Modules of the functions that are not pyautogui's."""
_TAKES_ANYTHING = frozenset({"wait", "sleep"})
_HOW_LONG = frozenset({"interval", "duration", "tween", "pause", "_pause", "logScreenshot"})
"""Ignored: the environment decides how long something takes."""

_THOUGHT, _ACTION = (
    re.compile(rf"^##[ \t]*{label}[ \t]*:?\n(.*?)(?=^##|\Z)", re.DOTALL | re.MULTILINE)
    for label in ("Thought", "Action")
)
_FENCE = "```"
_LANGUAGE = re.compile(r"\A(?:code|python)", re.IGNORECASE)
_Arguments = Mapping[str, Any]


def parse_reply(text: str, image_size: Size, screen_size: Size) -> Reply:
    """Parse one reply of the model. If it has several blocks of code, the last counts.

    Args:
        text: the reply as decoded.
        image_size: the size of the resized image that the model saw.
        screen_size: the size of the screen that the returned points are in.

    Raises:
        ActionParseError: the text is not in the grammar, or a coordinate is outside the image; the message says why.
    """
    check_length(text)
    text = text.replace("\r\n", "\n")
    frame = CoordinateFrame(image_size, screen_size)
    actions: list[Action] = []
    for name, arguments in _calls(_code_of(text)):
        actions += _BUILDERS[name](name, arguments, frame)
        match actions[-2:]:
            case [Move(point=start), Drag(start=None, end=end)]:
                actions[-2:] = [Drag(start, end)]
        if len(actions) > MAX_ACTIONS:
            raise ActionParseError(f"a reply must have at most {MAX_ACTIONS} actions, got more")
    if not actions:
        raise ActionParseError("the code must have a call, got none")
    if said_action(text) is None and not isinstance(actions[-1], (Finish, Fail)):
        raise ActionParseError("a reply must say what it does in a section '## Action:', got none")
    thought = _THOUGHT.search(text)
    return Reply(thought[1].strip() if thought else "", tuple(actions))


def said_action(text: str) -> str | None:
    """Return the section in which a reply says what it does, which the runner shows in later turns; None without it."""
    found = _ACTION.search(text.replace("\r\n", "\n"))
    return (found[1].strip() or None) if found else None


def format_reply(reply: Reply, image_size: Size, screen_size: Size) -> str:
    """Write a reply in the canonical form. This inverts `parse_reply`, except that coordinates are whole pixels.

    Raises:
        ActionParseError: the thought or a text contains the grammar's own marks.
    """
    thought = reply.thought.strip()
    frame = CoordinateFrame(image_size, screen_size)
    code = "\n".join(_code(action, frame) for action in reply.actions)
    if _FENCE in thought + code or re.search(r"^##", thought, re.MULTILINE):
        raise ActionParseError(f"a reply must not hold the grammar's own marks, got {excerpt(thought or code)}")
    words = ", ".join(type(action).__name__ for action in reply.actions)
    language = "code" if code.startswith("computer.") else "python"
    said = f"## Action:\n{words}\n\n## Code:\n{_FENCE}{language}\n{code}\n{_FENCE}"
    return f"## Thought:\n{thought}\n\n{said}" if thought else said


# --- Python -------------------------------------------------------------------------------------------------------


def _code_of(text: str) -> str:
    """Return the last block of code, without its language."""
    blocks = text.split(_FENCE)[1:-1:2]
    if not blocks:
        raise ActionParseError(f"a reply must have its action as code within {_FENCE}, got {excerpt(text)}")
    return _LANGUAGE.sub("", blocks[-1]).strip()


def _calls(code: str) -> Iterator[tuple[str, _Arguments]]:
    """Yield (function, arguments) of each statement. Imports are ignored."""
    for statement in statements(code, MAX_CODE_CHARS):
        match statement:
            case ast.Import():
                continue
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) as call):
                if name not in _PARAMETERS or module != _MODULES.get(name, "pyautogui"):
                    raise unknown_action(name if module == "pyautogui" else f"{module}.{name}", _PARAMETERS)
                yield name, _arguments(name, call)
            case _:
                raise ActionParseError(f"the code must contain only calls of pyautogui, got {type(statement).__name__}")


def _arguments(name: str, call: ast.Call) -> _Arguments:
    """Return the arguments that count, by name. All unnamed arguments of `hotkey` are its keys."""
    if name in _TAKES_ANYTHING:
        return {}
    values, names = [_value(node) for node in call.args], _PARAMETERS[name]
    if name == "hotkey":
        values = [values[0] if len(values) == 1 and isinstance(values[0], list) else values]
    if len(values) > len(names):
        raise ActionParseError(f"{name} takes {', '.join(names)}, got {len(values)} arguments")
    given = dict(zip(names, values, strict=False))
    given |= {keyword.arg or "**": _value(keyword.value) for keyword in call.keywords}
    said = {key: value for key, value in given.items() if key not in _HOW_LONG}
    refuse_leftovers(name, said, [key for key in names if key not in _HOW_LONG])
    return said


def _value(node: ast.expr) -> Any:
    """Return a number, a text, True, False or None, or a list of them, for keys."""
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [constant(part) for part in parts]
    return constant(node)


# --- Actions from calls -------------------------------------------------------------------------------------------


def _number(arguments: _Arguments, name: str, least: float, most: float) -> float | None:
    """Return the argument of this name, or None."""
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise ActionParseError(f"{name} must be a number from {least:g} to {most:g}, got {shown(value)}")
    return value


def _count(arguments: _Arguments, name: str, default: int, most: int) -> int:
    return round(_number(arguments, name, 1, most) or default)


def _point(arguments: _Arguments, frame: CoordinateFrame) -> Point | None:
    """Return the point of a call; None without one, which means the pointer's place."""
    x, y = (_number(arguments, name, -1e6, 1e6) for name in ("x", "y"))
    if x is None and y is None:
        return None
    if x is None or y is None:
        raise ActionParseError("a position must have x and y, got one of them")
    if isinstance(x + y, float) and 0 <= x <= 1 and 0 <= y <= 1:
        frame = CoordinateFrame(Size(1, 1), frame.screen, "fractions")
    return frame.to_screen(x, y)


def _target(name: str, arguments: _Arguments, frame: CoordinateFrame) -> Point:
    point = _point(arguments, frame)
    if point is None:
        raise ActionParseError(f"{name} must say where to by x and y, got none")
    return point


def _click(name: str, arguments: _Arguments, frame: CoordinateFrame) -> list[Action]:
    usual, count = _CLICKS[name]
    button = arguments.get("button", usual)
    if button not in get_args(Button):
        raise ActionParseError(f"button must be left, right or middle, got {shown(button)}")
    return [Click(_point(arguments, frame), button, _count(arguments, "clicks", count, MAX_CLICKS))]


def _drag(name: str, arguments: _Arguments, frame: CoordinateFrame) -> list[Action]:
    if arguments.get("button", "left") != "left":
        raise ActionParseError(f"a drag must be with the left button, got {shown(arguments['button'])}")
    return [Drag(None, _target(name, arguments, frame))]


def _scroll(name: str, arguments: _Arguments, frame: CoordinateFrame) -> list[Action]:
    notches = _number(arguments, "clicks", -1e6, 1e6)
    if not notches:
        raise ActionParseError(f"{name} must have clicks other than 0")
    ways: tuple[Direction, Direction] = ("right", "left") if name == "hscroll" else ("up", "down")
    amount = min(max(round(abs(notches)), 1), MAX_SCROLL_NOTCHES)
    return [Scroll(ways[0] if notches > 0 else ways[1], _point(arguments, frame), amount)]


def _write(name: str, arguments: _Arguments, frame: CoordinateFrame) -> list[Action]:
    message = arguments.get("message")
    if isinstance(message, list):
        return _press(name, {"keys": message}, frame)
    if not isinstance(message, str):
        raise ActionParseError(f"{name} must have a text, got {shown(message)}")
    return [TypeText(message)]


def _press(name: str, arguments: _Arguments, frame: CoordinateFrame) -> list[Action]:
    """Press keys one after the other. The same key several times in a row is one action."""
    pressed = [_keys(key) for key in _listed(arguments)] * _count(arguments, "presses", 1, MAX_KEYS)
    return [Hotkey(key * len(list(run))) for key, run in groupby(pressed)]


def _hotkey(name: str, arguments: _Arguments, frame: CoordinateFrame) -> list[Action]:
    keys = tuple(key for text in _listed(arguments) for key in _keys(text))
    if not keys:
        raise ActionParseError("hotkey must name at least one key, got none")
    return [Hotkey(keys)]


def _listed(arguments: _Arguments) -> list[Any]:
    keys = arguments.get("keys")
    return keys if isinstance(keys, list) else [keys]


def _keys(text: object) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise ActionParseError(f"a key must be a name, got {shown(text)}")
    return ("space",) if text == " " else parse_keys(text)


def _terminate(name: str, arguments: _Arguments, frame: CoordinateFrame) -> list[Action]:
    status, answer = arguments.get("status"), arguments.get("answer")
    if status not in ("success", "failure", "fail", "failed"):
        raise ActionParseError(f"status must be success or failure, got {shown(status)}")
    return [Finish(answer if isinstance(answer, str) else "") if status == "success" else Fail()]


_BUILDERS: Mapping[str, Callable[[str, _Arguments, CoordinateFrame], list[Action]]] = {
    **dict.fromkeys(_CLICKS, _click),
    "moveTo": lambda name, arguments, frame: [Move(_target(name, arguments, frame))],
    "dragTo": _drag,
    **dict.fromkeys(("scroll", "vscroll", "hscroll"), _scroll),
    **dict.fromkeys(("write", "typewrite"), _write),
    "press": _press,
    "hotkey": _hotkey,
    **dict.fromkeys(_TAKES_ANYTHING, lambda name, arguments, frame: [Wait()]),
    "terminate": _terminate,
}


# --- Actions to code ----------------------------------------------------------------------------------------------


def _code(action: Action, frame: CoordinateFrame) -> str:
    match action:
        case Click(point=point, button=button, count=count):
            how = {"clicks": count} if count > 1 else {}
            return _call("click", **_place(point, frame), **how, **({} if button == "left" else {"button": button}))
        case Drag(start=start, end=end):
            first = "" if start is None else f"{_call('moveTo', **_place(start, frame))}\n"
            return first + _call("dragTo", **_place(end, frame), button="left")
        case Move(point=point):
            return _call("moveTo", **_place(point, frame))
        case Hotkey(keys=keys) if len(set(keys)) == 1:
            return _call("press", keys=keys[0], **({"presses": len(keys)} if len(keys) > 1 else {}))
        case Hotkey(keys=keys):
            return f"pyautogui.hotkey({', '.join(map(repr, keys))})"
        case TypeText(text=text):
            return _call("write", message=text)
        case Scroll(direction=direction, point=point, notches=notches):
            sign = 1 if direction in ("up", "right") else -1
            name = "scroll" if direction in ("up", "down") else "hscroll"
            return _call(name, clicks=sign * (notches or SCROLL_NOTCHES), **_place(point, frame))
        case Finish(answer=answer):
            return _call("terminate", status="success", **({"answer": answer} if answer else {}))
        case Fail():
            return _call("terminate", status="failure")
    return _call("wait")


def _call(name: str, **arguments: object) -> str:
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{_MODULES.get(name, 'pyautogui')}.{name}({written})"


def _place(point: Point | None, frame: CoordinateFrame) -> dict[str, int]:
    return {} if point is None else dict(zip("xy", frame.to_image(point), strict=True))
