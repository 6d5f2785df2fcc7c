"""Check actions that Python code made by the grammars' rules, before a desktop gets them."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any, get_args

from arpo_verl.agent.actions.keys import KEY_NAMES
from arpo_verl.agent.actions.typing import check_text
from arpo_verl.errors import ActionError, ActionParseError
from arpo_verl.lib.config import did_you_mean
from arpo_verl.types import Action, Button, Click, Direction, Drag, Finish, Hotkey, Move, Point, Scroll, Size, TypeText

MAX_CLICKS = 3
"""Most presses of one click: no program has more than a triple click."""

MAX_KEYS = 100
"""Most keys of one hotkey: about as many as a keyboard has."""

MAX_SCROLL_NOTCHES = 100
"""Most wheel notches of one action: several pages. `pixels` of 100,000 would block the desktop for minutes."""


def check_action(action: Action, screen: Size) -> None:
    """Refuse an action that no grammar would accept.

    Args:
        action: anything.
        screen: the size of the screen that it is for.

    Raises:
        ActionError: it is not a valid action; the message lists all problems.
    """
    if not isinstance(action, get_args(Action)):
        kinds = ", ".join(kind.__name__ for kind in get_args(Action))
        raise ActionError(f"an action must be one of {kinds}, got {action!r:.80}")
    problems = list(_problems(action, screen))
    if problems:
        raise ActionError(f"{type(action).__name__}: {'; '.join(problems)}"[:500])
    if isinstance(action, TypeText):
        check_text(action.text)
    if isinstance(action, Hotkey) and len(action.keys) > MAX_KEYS:
        raise ActionParseError(f"a hotkey must have at most {MAX_KEYS} keys, got {len(action.keys)}")


def _problems(action: Action, screen: Size) -> Iterator[str]:
    match action:
        case Click(point=point, button=button, count=count):
            yield from _off_screen("point", point, screen, optional=True)
            yield from _unless(_is_one_of(button, Button), "button", "left, right or middle", button)
            yield from _unless(_is_whole(count, MAX_CLICKS), "count", f"1 to {MAX_CLICKS}", count)
        case Drag(start=start, end=end):
            yield from _off_screen("start", start, screen, optional=True)
            yield from _off_screen("end", end, screen)
        case Move(point=point):
            yield from _off_screen("point", point, screen)
        case Hotkey(keys=keys):
            yield from _unknown_keys(keys)
        case TypeText(text=text):
            yield from _unless(isinstance(text, str), "text", "a string", text)
        case Scroll(direction=direction, point=point, notches=notches):
            yield from _unless(_is_one_of(direction, Direction), "direction", "up, down, left or right", direction)
            yield from _off_screen("point", point, screen, optional=True)
            ok = notches is None or _is_whole(notches, MAX_SCROLL_NOTCHES)
            yield from _unless(ok, "notches", f"1 to {MAX_SCROLL_NOTCHES}, or None", notches)
        case Finish(answer=answer):
            yield from _unless(isinstance(answer, str), "answer", "a string", answer)


def _unless(ok: bool, name: str, expected: str, value: object) -> Iterator[str]:
    if not ok:
        yield f"{name} must be {expected}, got {value!r:.60}"


def _is_one_of(value: object, names: object) -> bool:
    return isinstance(value, str) and value in get_args(names)


def _is_integer(value: object) -> bool:
    """Return whether the value is an integer of Python or numpy, but not a boolean."""
    return type(value) is not bool and isinstance(value, Integral)


def _is_whole(value: Any, most: int) -> bool:
    return _is_integer(value) and 1 <= value <= most


def _off_screen(name: str, point: Any, screen: Size, *, optional: bool = False) -> Iterator[str]:
    if point is None and optional:
        return
    ok = isinstance(point, Point) and all(map(_is_integer, point))
    ok = ok and 0 <= point.x < screen.width and 0 <= point.y < screen.height
    expected = f"a Point of whole pixels from (0, 0) to ({screen.width - 1}, {screen.height - 1})"
    yield from _unless(ok, name, expected, point)


def _unknown_keys(keys: Any) -> Iterator[str]:
    ok = isinstance(keys, (tuple, list)) and len(keys) > 0
    yield from _unless(ok, "keys", "at least one key's name, in a tuple", keys)
    for key in keys if ok else ():
        if not isinstance(key, str) or key not in KEY_NAMES:
            hint = did_you_mean(key, KEY_NAMES)
            yield f"no key is named {key!r:.40} (see arpo_verl.agent.actions.keys.KEY_NAMES){hint}"
