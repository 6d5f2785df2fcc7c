"""Read and write the UI-TARS-1.5 grammar: model text <-> typed actions.

A reply is `Thought: ...` and then `Action: ...` with one call, or several separated by a newline (UI-TARS uses a blank
line). Since a model writes the text, we evaluate nothing: a scanner reads it in linear time, and anything outside the
grammar raises `ActionParseError` with the reason.

Source: the UI-TARS-1.5 prompt's action space, as OSWorld's runner `mm_agents/uitars15_v1.py` uses it. If that acts, so
do we: comments, remarks under names that an action does not have, or a second thought with its action (the last one
counts) do not end an episode. We depart from it where it would type a reply's own syntax or ignore what the reply says,
and with bad input: it calls `eval`, takes an unknown action as a comment, and clicks outside the screen. Doubao writes
the same with a full-width colon, in square brackets or in `<bbox>` tags. docs/actions.md lists what is read, tolerated
and refused; `tests/agent/actions/test_official_parsers.py` names each difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from arpo_verl.agent.actions.calls import CallScanner, excerpt
from arpo_verl.agent.actions.keys import format_keys, parse_keys
from arpo_verl.agent.actions.leftovers import refuse_leftovers
from arpo_verl.agent.actions.reply import MAX_ACTIONS, CoordinateFrame, Reply, check_length, unknown_action
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

_CLICKS: Mapping[str, tuple[Button, int]] = {
    "click": ("left", 1),
    "left_single": ("left", 1),
    "left_double": ("left", 2),
    "right_single": ("right", 1),
}
_START_NAMES = ("start_box", "point", "start_point")
_END_NAMES = ("end_box", "end_point")
_KEYS = ("key", "hotkey")
_DIRECTIONS: tuple[Direction, ...] = ("up", "down", "left", "right")

# Arguments of each action. The prompt does not name `select`, a drag, and `hover`, a move, but the runner does them.
_POSITION, _CONTENT = _START_NAMES, ("content",)
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_CLICKS, _POSITION),
    "hover": _POSITION,
    **dict.fromkeys(("drag", "select"), (*_START_NAMES, *_END_NAMES)),
    "scroll": (*_POSITION, "direction"),
    "hotkey": _KEYS,
    "wait": (),
    **dict.fromkeys(("type", "finished", "call_user", "error_env"), _CONTENT),
}
_SCANNER = CallScanner(_ARGUMENTS, free_text="content", typed="type")

# Actions that do nothing on the screen, so other arguments cannot change what they do.
_TAKES_ANYTHING = frozenset({"wait", "finished", "call_user", "error_env"})

_ACTION = re.compile("Action[:\uff1a]")
_ACTION_LINE = re.compile("^[^\\S\\n]*Action[:\uff1a](?=\\s*[\\w.]{1,160}\\s*\\()", re.MULTILINE)
_THOUGHT_LINE = re.compile("^[^\\S\\n]*Thought[:\uff1a]", re.MULTILINE)
_LABEL_LINE = re.compile("^[^\\S\\n]*(?:Action|Thought)[:\uff1a]", re.MULTILINE)
_FIRST_LABEL = re.compile("\\AThought[:\uff1a]")

_NUMBER = r"([-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,2})?)"
_BOX = re.compile(rf"\s*{_NUMBER}\s*,\s*{_NUMBER}\s*(?:,\s*{_NUMBER}\s*,\s*{_NUMBER}\s*)?")
_NEXT = rf"[\s,]\s*{_NUMBER}\s*"
_TAGGED = re.compile(rf"\s*<(?:point|bbox)>\s*{_NUMBER}{_NEXT}(?:{_NEXT}{_NEXT})?</(?:point|bbox)>\s*")
# Brackets mean nothing, as in OSWorld's runner: `(x1,y1),(x2,y2)` is a box.
_PLAIN = str.maketrans({"\uff0c": ",", **dict.fromkeys("()[]\uff08\uff09")})


def parse_reply(text: str, image_size: Size, screen_size: Size) -> Reply:
    """Parse one reply of the model.

    Args:
        text: the reply as decoded, with or without the `<|box_start|>` and `<|box_end|>` tokens.
        image_size: the size of the resized image that the model saw; its coordinates are in these pixels.
        screen_size: the size of the screen that the returned points are in.

    Raises:
        ActionParseError: the text is not in the grammar, or a coordinate is outside the image; the message says why.
    """
    check_length(text)
    text = text.replace("\r\n", "\n").strip()
    thought, position = _split_thought(text)
    frame = CoordinateFrame(image_size, screen_size)
    actions: list[Action] = []
    for name, arguments in _SCANNER.read(text, position):
        if len(actions) == MAX_ACTIONS:
            raise ActionParseError(f"a reply must have at most {MAX_ACTIONS} actions, got more")
        actions.append(_build_action(name, arguments, frame))
    return Reply(thought, tuple(actions))


def format_reply(reply: Reply, image_size: Size, screen_size: Size) -> str:
    """Write a reply in the canonical UI-TARS-1.5 form, the inverse of `parse_reply`.

    A point becomes the nearest pixel of the image. Parsing returns the same reply if its points came from this image,
    and otherwise points at most one image pixel off.

    Raises:
        ActionParseError: the grammar has no such action (a middle click, a click at the pointer), or the thought
            contains its labels.
    """
    thought = reply.thought.strip()
    if _LABEL_LINE.search(thought):
        raise ActionParseError(f"a thought must not hold the grammar's own labels, got {excerpt(thought)}")
    frame = CoordinateFrame(image_size, screen_size)
    actions = "\n\n".join(_format_action(action, frame) for action in reply.actions)
    return f"Thought: {thought}\nAction: {actions}" if thought else f"Action: {actions}"


# --- Coordinates -------------------------------------------------------------------------------------------------


def _parse_point(value: str, frame: CoordinateFrame) -> Point:
    """Turn `(x,y)`, `<point>x y</point>` or the centre of a box of four numbers into a point on the screen."""
    plain = value.replace("<|box_start|>", "").replace("<|box_end|>", "").translate(_PLAIN)
    match = _BOX.fullmatch(plain) or _TAGGED.fullmatch(plain)
    if match is None:
        raise ActionParseError(
            "a position must be '(x,y)', '(x1,y1,x2,y2)', '[x1,y1,x2,y2]', '<point>x y</point>' or "
            f"'<bbox>x1 y1 x2 y2</bbox>', got {excerpt(value)}"
        )
    return frame.to_screen(*(float(number) for number in match.groups() if number is not None))


def _split_thought(text: str) -> tuple[str, int]:
    """Return the thought, and the position after the `Action:` label.

    The last thought and the last label count, as in OSWorld's runner. A label within a line counts only if no line of
    the last thought starts with one and a call: typed text, which ends on its line, may contain it.
    """
    last: re.Match[str] | None = None
    for match in _ACTION.finditer(text):
        last = match
    if last is None:
        raise ActionParseError(f"a reply must have 'Action:' before its action, got {excerpt(text)}")
    begin = max((match.start() for match in _THOUGHT_LINE.finditer(text, 0, last.start())), default=0)
    first, end = _ACTION_LINE.search(text, begin), last.end()
    start = last.start() if first is None else first.start()
    for label in _ACTION_LINE.finditer(text, begin):
        end = label.end()
    return _FIRST_LABEL.sub("", text[begin:start].strip()).strip(), end


# --- Actions from calls ------------------------------------------------------------------------------------------


def _build_action(name: str, arguments: dict[str, str], frame: CoordinateFrame) -> Action:
    """Return the action of one call. Remarks under names that it does not have are ignored, as in OSWorld's runner."""
    if name not in _BUILDERS:
        raise unknown_action(name, _BUILDERS)
    if name not in _TAKES_ANYTHING:
        refuse_leftovers(name, arguments, _ARGUMENTS[name])
        for keys in (_START_NAMES, _END_NAMES, _KEYS):
            _refuse_several(name, arguments, keys)
    return _BUILDERS[name](name, arguments, frame)


def _refuse_several(name: str, arguments: dict[str, str], keys: tuple[str, ...]) -> None:
    given = {key: arguments[key] for key in keys if arguments.get(key)}
    if len(set(given.values())) > 1:
        raise ActionParseError(f"{name} must have one of {', '.join(keys)}, got different {' and '.join(given)}")


def _take(name: str, arguments: dict[str, str], keys: tuple[str, ...]) -> str:
    """Return the argument that has one of these names."""
    for key in keys:
        if key in arguments:
            return arguments[key]
    raise ActionParseError(f"{name} must have {' or '.join(keys)}, got {', '.join(arguments)[:60] or 'no argument'}")


def _start(name: str, arguments: dict[str, str], frame: CoordinateFrame) -> Point:
    return _parse_point(_take(name, arguments, _START_NAMES), frame)


def _click(name: str, arguments: dict[str, str], frame: CoordinateFrame) -> Action:
    return Click(_start(name, arguments, frame), *_CLICKS[name])


def _drag(name: str, arguments: dict[str, str], frame: CoordinateFrame) -> Action:
    return Drag(_start(name, arguments, frame), _parse_point(_take(name, arguments, _END_NAMES), frame))


def _scroll(name: str, arguments: dict[str, str], frame: CoordinateFrame) -> Action:
    said = _take(name, arguments, ("direction",))
    # It may be within more words, as OSWorld's runner allows: `scroll down`.
    directions = [word for word in _DIRECTIONS if word in said.lower()]
    if len(directions) != 1 or any(map(str.isdigit, said)):
        raise ActionParseError(f"scroll's direction must be one of {', '.join(_DIRECTIONS)}, got {excerpt(said)}")
    has_point = any(arguments.get(key) for key in _START_NAMES)
    return Scroll(directions[0], _start(name, arguments, frame) if has_point else None)


def _hotkey(name: str, arguments: dict[str, str], frame: CoordinateFrame) -> Action:
    return Hotkey(parse_keys(_take(name, arguments, _KEYS)))


_BUILDERS: Mapping[str, Callable[[str, dict[str, str], CoordinateFrame], Action]] = {
    **dict.fromkeys(_CLICKS, _click),
    "hover": lambda name, arguments, frame: Move(_start(name, arguments, frame)),
    **dict.fromkeys(("drag", "select"), _drag),
    "hotkey": _hotkey,
    "type": lambda name, arguments, frame: TypeText(_take(name, arguments, _CONTENT)),
    "scroll": _scroll,
    "wait": lambda name, arguments, frame: Wait(),
    "finished": lambda name, arguments, frame: Finish(arguments.get("content", "")),
    **dict.fromkeys(("call_user", "error_env"), lambda name, arguments, frame: Fail()),
}


# --- Actions to text ---------------------------------------------------------------------------------------------


def _format_action(action: Action, frame: CoordinateFrame) -> str:
    match action:
        case Click(point=Point() as point, button=button, count=count):
            for name in ("click", "left_double", "right_single"):
                if _CLICKS[name] == (button, count):
                    return f"{name}(start_box={_format_point(point, frame)})"
            raise ActionParseError(f"UI-TARS has no click of {count} with the {button} button")
        case Drag(start=Point() as start, end=end):
            return f"drag(start_box={_format_point(start, frame)}, end_box={_format_point(end, frame)})"
        case Move(point=point):
            return f"hover(start_box={_format_point(point, frame)})"
        case Hotkey(keys=keys):
            return f"hotkey(key={_quote(format_keys(keys))})"
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


def _format_point(point: Point, frame: CoordinateFrame) -> str:
    x, y = frame.to_image(point)
    return f"'<|box_start|>({x},{y})<|box_end|>'"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") + "'"
