"""Typed action -> Python source that uses pyautogui and time, as OSWorld's guest runs it.

All text goes through `ascii()`, so no character of a model's reply is ever code. The OSWorld client rewrites
`pyautogui.press('<')` and `pyautogui.typewrite('...')` anywhere in the source by regular expression (its
`_fix_pyautogui_less_than_bug`), inside string literals too; what is written here never matches those.

Source: the choices of amounts and pauses are those of OSWorld's UI-TARS runner `mm_agents/uitars15_v1.py`.
We depart from it in typing: it pastes everything, which a terminal does not take (Ctrl+V is not paste there). Here
printable ASCII is typed, and only a line with other characters is pasted.
"""

from __future__ import annotations

from collections.abc import Iterator

from arpo_verl.types import Action, Click, Drag, Hotkey, Move, Point, Scroll, TypeText, Wait

SCROLL_NOTCHES = 5
"""Wheel notches of a scroll action whose grammar has no amount."""

DRAG_S = 1.0
"""Seconds that a drag takes: too fast a one is not taken for a drag by some toolkits."""

PASTE_S = 0.5
"""Seconds that a program gets to read the clipboard before it changes again."""

_REST_AFTER_PASTE = f"time.sleep({PASTE_S})"

CALL_S = 0.1
"""Seconds that pyautogui rests after each call (its `PAUSE`)."""

CHARACTER_S = 0.002
"""Seconds that a typed character may take: 0.6 to 1.1 ms on an embedded desktop, measured on a busy machine."""

WAIT_S = 5.0
"""Seconds of `wait()`, by the UI-TARS prompt."""


def to_code(action: Action, *, wait_s: float = WAIT_S) -> str:
    """Write `action` as Python statements, one a line, without imports of pyautogui and time.

    Args:
        action: any action but `Finish` and `Fail`, which a desktop has no input for.
        wait_s: seconds that `Wait` sleeps.

    Raises:
        TypeError: the action has no code.
    """
    match action:
        case Click(point=point, button=button, count=count):
            place = "" if point is None else f"{_position(point)}, "
            return f"pyautogui.click({place}clicks={count:d}, button={button!a})"
        case Drag(start=start, end=end):
            first = "" if start is None else f"pyautogui.moveTo({_position(start)})\n"
            return f"{first}pyautogui.dragTo({_position(end)}, duration={DRAG_S}, button='left')"
        case Move(point=point):
            return f"pyautogui.moveTo({_position(point)})"
        case Hotkey(keys=keys):
            return _hotkey(keys)
        case TypeText(text=text):
            return _type(text)
        case Scroll(direction=direction, point=point, notches=notches):
            return _scroll(direction, point, SCROLL_NOTCHES if notches is None else notches)
        case Wait():
            return f"time.sleep({wait_s!r})"
    raise TypeError(f"{action!r} has no pyautogui code: the environment ends the episode by it")


def duration_s(code: str) -> float:
    """Seconds that the guest may need for an action's code: rests, and each of its characters as if it were typed."""
    rests = code.count("pyautogui.") * CALL_S + code.count(_REST_AFTER_PASTE) * PASTE_S
    return rests + len(code) * CHARACTER_S


def _position(point: Point) -> str:
    return f"x={point.x:d}, y={point.y:d}"


def _hotkey(keys: tuple[str, ...]) -> str:
    pressed: list[str] = []
    for key in keys:
        # On X servers where `<` has a key of its own, pyautogui adds Shift to that key and so presses `>`.
        pressed.extend(["shift", ","] if key == "<" else [key])
    if len(set(pressed)) < len(pressed):
        return "\n".join(_key_by_key(pressed))
    return f"pyautogui.hotkey({', '.join(_literal(key) for key in pressed)})"


def _key_by_key(keys: list[str]) -> Iterator[str]:
    """Press keys together of which some come again: X takes a press of a key that is down already for nothing."""
    down: list[str] = []
    for key in keys:
        if key in down:
            down.remove(key)
            yield f"pyautogui.keyUp({_literal(key)}, _pause=False)"
        down.append(key)
        yield f"pyautogui.keyDown({_literal(key)}, _pause=False)"
    for key in reversed(down):
        yield f"pyautogui.keyUp({_literal(key)}, _pause=False)"


def _scroll(direction: str, point: Point | None, notches: int) -> str:
    function = "scroll" if direction in ("up", "down") else "hscroll"
    amount = notches if direction in ("up", "right") else -notches
    return f"pyautogui.{function}({amount:d}{', ' + _position(point) if point is not None else ''})"


def _type(text: str) -> str:
    """Type line by line; each newline presses Enter."""
    statements: list[str] = []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for index, line in enumerate(lines):
        if index > 0:
            statements.append("pyautogui.press('enter')")
        if line:
            statements.extend(_type_line(line))
    return "\n".join(statements)


def _type_line(line: str) -> list[str]:
    if not line.isascii():
        # pyautogui has no key for it on X11 and would silently leave it out. pyperclip is a dependency of pyautogui.
        copy = f"__import__('pyperclip').copy({_literal(line)})"
        return [copy, "pyautogui.hotkey('ctrl', 'v')", _REST_AFTER_PASTE]
    statements: list[str] = []
    for index, part in enumerate(line.split("<")):
        if index > 0:
            statements.append(_hotkey(("<",)))
        if part:
            statements.append(f"pyautogui.write({_literal(part)})")
    return statements


def _literal(text: str) -> str:
    """An ASCII Python literal that no rewriting of `pyautogui.` calls in the source matches."""
    return ascii(text).replace("pyautogui.", "pyautogui\\x2e")
