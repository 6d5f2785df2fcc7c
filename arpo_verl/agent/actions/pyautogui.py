"""Write a typed action as Python source that uses pyautogui and time, as OSWorld's guest runs it.

All text goes through `ascii()`, so no character of a model's reply is ever code. The OSWorld client rewrites
`pyautogui.press('<')` and `pyautogui.typewrite('...')` anywhere in the source by regular expression (its
`_fix_pyautogui_less_than_bug`), also inside string literals. What we write never matches these.

Source: amounts and pauses are those of OSWorld's UI-TARS runner `mm_agents/uitars15_v1.py`. It pastes all text, but a
terminal does not paste on Ctrl+V, and pasting overwrites the clipboard. So we type everything by key events
(`typing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from arpo_verl.agent.actions.typing import by_taught_pyautogui, literal
from arpo_verl.types import Action, Click, Drag, Hotkey, Move, Point, Scroll, TypeText, Wait

SCROLL_NOTCHES = 5
"""Wheel notches of a scroll action without an amount."""

DRAG_S = 1.0
"""Seconds that a drag takes: some toolkits do not recognize a faster one as a drag."""

WAIT_S = 5.0
"""Seconds of `wait()`, from the UI-TARS prompt."""

_SIGNS = dict(zip('~!@#$%^&*()_+{}|:"<>?', "`1234567890-=[]\\;',./", strict=True))
"""The key of an American keyboard that types a sign with Shift."""
_KEY_UNDER = {**_SIGNS, "shiftleft": "shift", "ctrlleft": "ctrl", "altleft": "alt", "winleft": "win"}
"""The key to press, if two names press the same one."""


def to_code(action: Action, *, type_text: Callable[[str], str] = by_taught_pyautogui) -> str:
    """Write `action` as Python statements, one a line, without imports of pyautogui and time.

    Args:
        action: any action except `Finish` and `Fail`, which a desktop cannot do.
        type_text: how this guest types a text: a function of `typing.py`.

    Raises:
        TypeError: the action has no code.
    """
    match action:
        case Click(point=point, button=button, count=count):
            place = "" if point is None else f"{_position(point)}, "
            return f"pyautogui.click({place}clicks={count:d}, button={literal(button)})"
        case Drag(start=start, end=end):
            first = "" if start is None else f"pyautogui.moveTo({_position(start)})\n"
            return f"{first}pyautogui.dragTo({_position(end)}, duration={DRAG_S}, button='left')"
        case Move(point=point):
            return f"pyautogui.moveTo({_position(point)})"
        case Hotkey(keys=keys):
            return _hotkey(keys)
        case TypeText(text=text):
            return type_text(text.replace("\r\n", "\n").replace("\r", "\n"))
        case Scroll(direction=direction, point=point, notches=notches):
            return _scroll(direction, point, SCROLL_NOTCHES if notches is None else notches)
        case Wait():
            return f"time.sleep({WAIT_S!r})"
    raise TypeError(f"{action!r} has no pyautogui code: the environment ends the episode by it")


def _position(point: Point) -> str:
    return f"x={point.x:d}, y={point.y:d}"


def _hotkey(keys: tuple[str, ...]) -> str:
    *first, last = keys
    distinct = len({_KEY_UNDER.get(key, key) for key in keys}) == len(keys)
    if distinct and last != "<" and not any(key in _SIGNS for key in first):
        return f"pyautogui.hotkey({', '.join(literal(key) for key in keys)})"
    return "\n".join(f"pyautogui.{function}({literal(key)}, _pause=False)" for function, key in _strokes(keys))


def _strokes(keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Press keys together, one after the other. X ignores a press of a key that is already down. After a sign,
    pyautogui releases Shift even if it should stay down."""
    down: list[str] = []
    for key in keys:
        code = _KEY_UNDER.get(key, key)
        shift = [] if key not in _SIGNS or "shift" in down else ["shift"]
        if code in down:
            down.remove(code)
            yield "keyUp", code
        yield from (("keyDown", part) for part in (*shift, code))
        yield from (("keyUp", part) for part in shift)
        down.append(code)
    yield from (("keyUp", code) for code in reversed(down))


def _scroll(direction: str, point: Point | None, notches: int) -> str:
    function = "scroll" if direction in ("up", "down") else "hscroll"
    amount = notches if direction in ("up", "right") else -notches
    return f"pyautogui.{function}({amount:d}{', ' + _position(point) if point is not None else ''})"
