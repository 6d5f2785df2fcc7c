"""The UI-TARS-1.5 grammar: model text -> typed actions, and back.

A reply is `Thought: ...` and then `Action: ...` with one call, or several separated by a newline (UI-TARS uses a blank
line). The text is a model's, so nothing of it is evaluated: a scanner reads it in linear time, and whatever is not in
the grammar raises `ActionParseError` with the reason.

Source: the UI-TARS-1.5 prompt's action space, as OSWorld's runner `mm_agents/uitars15_v1.py` uses it. We depart from
that runner in what it does with bad input: it calls `eval`, takes an unknown action for a comment, and clicks outside
the screen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from arpo_verl.actions.calls import excerpt, read_calls
from arpo_verl.actions.keys import parse_keys
from arpo_verl.actions.reply import MAX_ACTIONS, Frame, Reply, check_length
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
    Point,
    Scroll,
    Size,
    TypeText,
    Wait,
)

_CLICKS: Mapping[str, tuple[Button, int]] = {
    "click": ("left", 1),
    "left_single": ("left", 1),
    "left_double": ("left", 2),
    "right_single": ("right", 1),
}
_START_NAMES = ("start_box", "point", "start_point")
_END_NAMES = ("end_box", "end_point")
_DIRECTIONS: tuple[Direction, ...] = ("up", "down", "left", "right")

_ACTION_LINE = re.compile(r"^[ \t]*Action:", re.MULTILINE)

_NUMBER = r"(-?\d{1,6}(?:\.\d{1,6})?)"
_BOX = re.compile(rf"\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*(?:,\s*{_NUMBER}\s*,\s*{_NUMBER}\s*)?\)", re.ASCII)
_POINT = re.compile(rf"<point>\s*{_NUMBER}[\s,]\s*{_NUMBER}\s*</point>", re.ASCII)


def parse_reply(text: str, image_size: Size, screen_size: Size) -> Reply:
    """Parse one reply of the model.

    Args:
        text: the reply as decoded, with or without the `<|box_start|>` and `<|box_end|>` tokens.
        image_size: the size of the resized image that the model saw; its coordinates are in these pixels.
        screen_size: the size of the screen that the returned points are in.

    Raises:
        ActionParseError: the text is not in the grammar, or a coordinate is outside the image; says why.
    """
    check_length(text)
    text = text.replace("\r\n", "\n").strip()
    thought, position = _split_thought(text)
    frame = Frame(image_size, screen_size)
    actions: list[Action] = []
    for name, arguments in read_calls(text, position):
        if len(actions) == MAX_ACTIONS:
            raise ActionParseError(f"a reply must have at most {MAX_ACTIONS} actions, got more")
        actions.append(_build_action(name, arguments, frame))
    return Reply(thought, tuple(actions))


def format_reply(reply: Reply, image_size: Size, screen_size: Size) -> str:
    """Write a reply in the canonical UI-TARS-1.5 form; the inverse of `parse_reply`.

    Points go to the nearest pixel of the image. So parsing gives back the same reply wherever its points came from this
    image, and else points at most one image pixel off.

    Raises:
        ActionParseError: the grammar has no such action (a middle click, a click where the pointer is), or the thought
            holds its labels.
    """
    thought = reply.thought.strip()
    if _ACTION_LINE.search(thought) or thought.startswith("Thought:"):
        raise ActionParseError(f"a thought must not hold the grammar's own labels, got {excerpt(thought)}")
    frame = Frame(image_size, screen_size)
    actions = "\n\n".join(_format_action(action, frame) for action in reply.actions)
    return f"Thought: {thought}\nAction: {actions}" if thought else f"Action: {actions}"


# --- Coordinates -------------------------------------------------------------------------------------------------


def _parse_point(value: str, frame: Frame) -> Point:
    """`(x,y)`, the centre of `(x1,y1,x2,y2)`, or `<point>x y</point>`, in image pixels, to a screen point."""
    value = value.replace("<|box_start|>", "").replace("<|box_end|>", "").strip()
    match = _BOX.fullmatch(value) or _POINT.fullmatch(value)
    if match is None:
        raise ActionParseError(
            f"a position must be '(x,y)', '(x1,y1,x2,y2)' or '<point>x y</point>', got {excerpt(value)}"
        )
    numbers = [float(number) for number in match.groups() if number is not None]
    if len(numbers) == 4:
        frame.to_screen(*numbers[:2]), frame.to_screen(*numbers[2:])  # the corners must be in the image too
        numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
    return frame.to_screen(*numbers)


def _split_thought(text: str) -> tuple[str, int]:
    """The thought, and the position behind the `Action:` label.

    The first line that starts with the label counts, so that typed text may contain it; a label amid a line counts only
    where no line starts with one, and then the last.
    """
    match = _ACTION_LINE.search(text)
    start, end = (match.start(), match.end()) if match else (text.rfind("Action:"), text.rfind("Action:") + 7)
    if start < 0:
        raise ActionParseError(f"a reply must have 'Action:' before its action, got {excerpt(text)}")
    thought = text[:start].strip()
    return thought.removeprefix("Thought:").strip(), end


# --- Actions from calls ------------------------------------------------------------------------------------------


def _build_action(name: str, arguments: dict[str, str], frame: Frame) -> Action:
    if name in _CLICKS:
        button, count = _CLICKS[name]
        point = _parse_point(_take(name, arguments, _START_NAMES), frame)
        action: Action = Click(point, button, count)
    elif name in _BUILDERS:
        action = _BUILDERS[name](name, arguments, frame)
    else:
        known = ", ".join(sorted([*_CLICKS, *_BUILDERS]))
        raise ActionParseError(f"unknown action {name!r}; known: {known}")
    if arguments:
        raise ActionParseError(f"{name} has no argument {', '.join(map(repr, arguments))}")
    return action


def _take(name: str, arguments: dict[str, str], keys: tuple[str, ...]) -> str:
    """Take the one argument that has one of these names."""
    for key in keys:
        if key in arguments:
            return arguments.pop(key)
    raise ActionParseError(f"{name} must have {' or '.join(keys)}, got {', '.join(arguments) or 'no argument'}")


def _drag(name: str, arguments: dict[str, str], frame: Frame) -> Action:
    start = _parse_point(_take(name, arguments, _START_NAMES), frame)
    return Drag(start, _parse_point(_take(name, arguments, _END_NAMES), frame))


def _scroll(name: str, arguments: dict[str, str], frame: Frame) -> Action:
    direction = _take(name, arguments, ("direction",)).strip().lower()
    if direction not in _DIRECTIONS:
        raise ActionParseError(f"scroll's direction must be one of {', '.join(_DIRECTIONS)}, got {excerpt(direction)}")
    has_point = any(key in arguments for key in _START_NAMES)
    point = _parse_point(_take(name, arguments, _START_NAMES), frame) if has_point else None
    return Scroll(direction, point)


def _type(name: str, arguments: dict[str, str], frame: Frame) -> Action:
    text = _take(name, arguments, ("content",))
    if not text:
        raise ActionParseError("type must have text in content, got none")
    return TypeText(text)


def _hotkey(name: str, arguments: dict[str, str], frame: Frame) -> Action:
    return Hotkey(parse_keys(_take(name, arguments, ("key", "hotkey"))))


def _fail(name: str, arguments: dict[str, str], frame: Frame) -> Action:
    arguments.pop("content", None)
    return Fail()


_BUILDERS: Mapping[str, Callable[[str, dict[str, str], Frame], Action]] = {
    "drag": _drag,
    "hotkey": _hotkey,
    "type": _type,
    "scroll": _scroll,
    "wait": lambda name, arguments, frame: Wait(),
    "finished": lambda name, arguments, frame: Finish(arguments.pop("content", "")),
    "call_user": _fail,
    "error_env": _fail,
}


# --- Actions to text ---------------------------------------------------------------------------------------------


def _format_action(action: Action, frame: Frame) -> str:
    match action:
        case Click(point=Point() as point, button=button, count=count):
            for name in ("click", "left_double", "right_single"):
                if _CLICKS[name] == (button, count):
                    return f"{name}(start_box={_format_point(point, frame)})"
            raise ActionParseError(f"UI-TARS has no click of {count} with the {button} button")
        case Drag(start=Point() as start, end=end):
            return f"drag(start_box={_format_point(start, frame)}, end_box={_format_point(end, frame)})"
        case Hotkey(keys=keys):
            return f"hotkey(key={_quote(' '.join(keys))})"
        case TypeText(text=text):
            return f"type(content={_quote(text)})"
        case Scroll(direction=direction, point=None, notches=None):
            return f"scroll(direction='{direction}')"
        case Scroll(direction=direction, point=Point() as point, notches=None):
            return f"scroll(start_box={_format_point(point, frame)}, direction='{direction}')"
        case Wait():
            return "wait()"
        case Finish(answer=answer):
            return f"finished(content={_quote(answer)})" if answer else "finished()"
        case Fail():
            return "call_user()"
    raise ActionParseError(f"UI-TARS has no action {action!r}")


def _format_point(point: Point, frame: Frame) -> str:
    x, y = frame.to_image(point)
    return f"'<|box_start|>({x},{y})<|box_end|>'"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") + "'"
