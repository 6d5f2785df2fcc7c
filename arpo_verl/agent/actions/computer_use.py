"""Read and write the `computer_use` grammar of Qwen's models: a tool call <-> typed actions.

A reply is a thought and then one or several tool calls:

    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [182, 126]}}
    </tool_call>

Qwen2.5-VL gives coordinates in pixels of the resized image, Qwen3-VL in thousandths of its sides; its tool has three
more actions. Qwen3.5's own template writes `<function=computer_use>` and each argument in a `<parameter=NAME>`. Since a
model writes the text, Python's own decoder reads the JSON, and anything outside the grammar raises `ActionParseError`.

Source: the actions and argument names of the `computer_use` tool in Qwen's cookbooks, as OSWorld's runners
`mm_agents/qwen25vl_agent.py` and `qwen3vl_agent.py` use it. If these act, so do we: remarks under names that an action
does not have, text after a call, a missing tag, or the signs that Qwen2.5-VL writes instead do not end an episode.
We depart from them in bad input and in details. They take a call that they do not understand as no action, ignore
positions, directions and amounts that they do not read, and paste typed text into Python source unescaped. They count
`terminate` with `failure` as done; here it is FAIL, the right answer to an infeasible task. They map thousandths by
999; here both edges, 0 and 1000, belong to the image. They turn the wheel by any number of notches. docs/actions.md
lists what is read, tolerated and refused; `tests/agent/actions/test_official_parsers.py` names each difference.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from arpo_verl.agent.actions.calls import excerpt, shown
from arpo_verl.agent.actions.checks import MAX_SCROLL_NOTCHES
from arpo_verl.agent.actions.keys import parse_keys
from arpo_verl.agent.actions.leftovers import refuse_leftovers
from arpo_verl.agent.actions.pyautogui import SCROLL_NOTCHES
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

TOOL = "computer_use"
_NUMBERING = frozenset({"id", "index"})
"""Keys that number several calls."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_END_OF_THINKING = "</think>"
# What may precede a call: its tag; the sign that Qwen2.5-VL learned instead ("a bug during data processing",
# qwen25vl_agent.py); or nothing, if the call begins a line.
_BEFORE_CALL = re.compile(
    r'(?:<tool_call>|\u2697|\U0001f4d0)\s*(?=\{|<function=)|^[ \t]*(?=\{\s*"(?:name|arguments)"\s*:|<function=)',
    re.MULTILINE,
)
# A call directly after another one.
_NEXT_CALL = re.compile(r'[\s,;]*(?=\{\s*"(?:name|arguments)"\s*:|<function=)')
_FUNCTION = re.compile(r"<function=([^<>\s]{1,40})>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\s]{1,40})>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_END_OF_FUNCTION = "</function>"
_THOUSAND = Size(1000, 1000)
_WRITTEN_WAIT_S = 5
_FAILED = ("failure", "failed", "fail", "infeasible", "impossible")
_DONE = ("success", "successful", "succeeded", "done", "complete", "completed", "finished", "")

_CLICKS: Mapping[str, tuple[Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
_SCROLLS: Mapping[str, tuple[Direction, Direction]] = {"scroll": ("up", "down"), "hscroll": ("right", "left")}
"""Directions of positive and negative `pixels`."""

# The arguments that each action on the screen reads.
_PLACE = ("coordinate",)
_READ: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((*_CLICKS, "mouse_move", "left_click_drag"), _PLACE),
    **dict.fromkeys(_SCROLLS, ("pixels", *_PLACE)),
    "key": ("keys",),
    "type": ("text",),
}
_BUTTONS = {**{name: button for name, (button, _) in _CLICKS.items()}, "left_click_drag": "left"}
_FILLED_IN = frozenset({"action", "time", "duration", "status"})
"""Ignored: the environment decides how long something takes, and only the end has a status."""


@dataclass(frozen=True)
class Tool:
    """The tool of one family of models."""

    relative: bool
    """Whether coordinates are thousandths of the image's sides; otherwise they are its pixels."""
    lacks: frozenset[str] = frozenset()
    """Actions that it does not have."""


QWEN25 = Tool(relative=False, lacks=frozenset({"triple_click", "hscroll", "answer"}))
QWEN3 = Tool(relative=True)


def parse_reply(text: str, image_size: Size, screen_size: Size, *, tool: Tool) -> Reply:
    """Parse one reply of the model.

    Args:
        text: the reply as decoded.
        image_size: the size of the resized image that the model saw.
        screen_size: the size of the screen that the returned points are in.
        tool: the model's tool.

    Raises:
        ActionParseError: the text is not in the grammar, or a coordinate is outside the image; the message says why.
    """
    check_length(text)
    text = text.strip()
    first = first_call(text)
    frame = _frame(image_size, screen_size, tool)
    actions: list[Action] = []
    for arguments in read_calls(text, first):
        if len(actions) == MAX_ACTIONS:
            raise ActionParseError(f"a reply must have at most {MAX_ACTIONS} tool calls, got more")
        actions.append(build_action(arguments, frame, tool))
    return Reply(text[: first.start()].strip(), tuple(actions))


def format_reply(reply: Reply, image_size: Size, screen_size: Size, *, tool: Tool) -> str:
    """Write a reply in the canonical form. This inverts `parse_reply`, except that coordinates are whole numbers.

    Raises:
        ActionParseError: the grammar has no such action, or the thought contains the grammar's own tags.
    """
    thought = reply.thought.strip()
    if any(tag in thought for tag in (_OPEN, _END_OF_THINKING)) or _BEFORE_CALL.search(thought):
        raise ActionParseError(f"a thought must not hold the grammar's own tags, got {excerpt(thought)}")
    frame = _frame(image_size, screen_size, tool)
    said = (part for action in reply.actions for part in _said_as(action))
    calls = ({"name": TOOL, "arguments": arguments_of(action, frame, tool)} for action in said)
    written = [f"{_OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{_CLOSE}" for call in calls]
    return "\n".join([thought, *written] if thought else written)


def _said_as(action: Action) -> tuple[Action, ...]:
    """Express the same input with the tool's actions: its drag starts at the pointer, its scroll has an amount."""
    match action:
        case Drag(start=Point() as start, end=end):
            return Move(start), Drag(None, end)
        case Scroll(notches=None):
            return (replace(action, notches=SCROLL_NOTCHES),)
    return (action,)


def _frame(image: Size, screen: Size, tool: Tool) -> CoordinateFrame:
    return CoordinateFrame(_THOUSAND, screen, "thousandths") if tool.relative else CoordinateFrame(image, screen)


# --- Tool calls --------------------------------------------------------------------------------------------------


def first_call(text: str) -> re.Match[str]:
    """Find what precedes the first call. A model that thinks aloud may write a call before its thinking ends.

    Raises:
        ActionParseError: there is no call.
    """
    thinking = text.find(_END_OF_THINKING)
    first = _BEFORE_CALL.search(text)
    if thinking >= 0 and (text.startswith("<think>") or first is None or thinking < first.start()):
        first = _BEFORE_CALL.search(text, thinking)
    if first is None:
        raise ActionParseError(f"a reply must have its action as JSON within {_OPEN}{_CLOSE}, got {excerpt(text)}")
    return first


def read_calls(text: str, before: re.Match[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the arguments of every call. Text between and after them is ignored, as in OSWorld's runners.

    Raises:
        ActionParseError: one is not a call of the tool.
    """
    while before is not None:
        call, position = (_read_json if text[before.end()] == "{" else _read_function)(text, before.end())
        if not isinstance(call, dict) or "arguments" not in call:
            raise ActionParseError(f"a tool call must be a JSON object with name and arguments, got {shown(call)}")
        if not isinstance(call["arguments"], dict):
            raise ActionParseError(f"a tool call's arguments must be a JSON object, got {shown(call['arguments'])}")
        if call.get("name") != TOOL:
            raise ActionParseError(f"the tool must be {TOOL}, got {shown(call.get('name'))}")
        beside = {name: value for name, value in call.items() if name not in _NUMBERING}
        refuse_leftovers(TOOL, beside, ("name", "arguments"))
        yield {name: value for name, value in call["arguments"].items() if value is not None}
        before = _NEXT_CALL.match(text, position) or _BEFORE_CALL.search(text, position)


def _read_json(text: str, position: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise ActionParseError(f"a tool call must be JSON: {error.msg}, got {excerpt(text[error.pos :])}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets nested as deep
        raise ActionParseError(f"a tool call must be JSON of sensible size: {str(error)[:80]}") from error


def _read_function(text: str, position: int) -> tuple[dict[str, Any], int]:
    """Read a call of Qwen3.5's template, which writes texts as they are, and other values as JSON."""
    function = _FUNCTION.match(text, position)
    if function is None:
        raise ActionParseError(f"a tool call must name its function, got {excerpt(text[position:])}")
    arguments: dict[str, Any] = {}
    position = function.end()
    while (parameter := _PARAMETER.match(text, position)) is not None:
        name, written = parameter.groups()
        arguments[name], position = written, parameter.end()
        with contextlib.suppress(ActionParseError):
            value, end = _read_json(written.strip(), 0)
            arguments[name] = written if name == "text" or end < len(written.strip()) else value
    if not text.startswith(_END_OF_FUNCTION, position):
        raise ActionParseError(f"a tool call must end with {_END_OF_FUNCTION}, got {excerpt(text[position:])}")
    return {"name": function[1], "arguments": arguments}, position + len(_END_OF_FUNCTION)


def _no_constant(name: str) -> Any:
    raise ActionParseError(f"a number must be finite, got {name}")


class _Fraction(float):
    """A number that is typed as the model wrote it: 10.50."""

    def __init__(self, written: str):
        self.written = written


# Newlines within strings, which some models leave unescaped, stay as they are.
_DECODER = json.JSONDecoder(parse_float=_Fraction, parse_constant=_no_constant, strict=False)


# --- Actions from arguments --------------------------------------------------------------------------------------


def build_action(arguments: Mapping[str, Any], frame: CoordinateFrame, tool: Tool) -> Action:
    """Return the action of one call. Remarks under names that it does not have are ignored.

    Raises:
        ActionParseError: the tool has no such action, or its arguments are wrong.
    """
    name = arguments.get("action")
    if not isinstance(name, str):
        raise ActionParseError("a tool call must name its action")
    if name not in _BUILDERS or name in tool.lacks:
        raise unknown_action(name, _BUILDERS.keys() - tool.lacks)
    if name in _READ:
        _refuse_leftovers(name, arguments)
    return _BUILDERS[name](arguments, frame)


def _refuse_leftovers(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that would change the action, unless they only repeat it."""
    same = {"pixels": 0, "button": _BUTTONS.get(name), "direction": _direction(name, arguments)}
    said = {key: value for key, value in arguments.items() if key not in _FILLED_IN}
    other = {key: value for key, value in said.items() if key not in same or _lower(value) != same[key]}
    refuse_leftovers(name, other, _READ[name])


def _direction(name: str, arguments: Mapping[str, Any]) -> Direction | None:
    """Return the direction in which the sign of `pixels` scrolls; None without one, and for other actions."""
    pixels = _as_number(arguments.get("pixels"))
    if not pixels or name not in _SCROLLS:
        return None
    return _SCROLLS[name][0 if pixels > 0 else 1]


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _point(arguments: Mapping[str, Any], frame: CoordinateFrame, name: str = "coordinate") -> Point | None:
    """Return the point in the argument of this name; None if there is none, which means the pointer's place."""
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(_is_number(number) for number in value):
        raise ActionParseError(f"{name} must be [x, y], a list of two numbers, got {shown(value)}")
    return frame.to_screen(*value)


def required_point(arguments: Mapping[str, Any], frame: CoordinateFrame, name: str = "coordinate") -> Point:
    """Return the point in the argument of this name.

    Raises:
        ActionParseError: there is none, or it is outside the image.
    """
    point = _point(arguments, frame, name)
    if point is None:
        raise ActionParseError(f"{name} must say where to, got none")
    return point


def _click(name: str) -> Callable[[Mapping[str, Any], CoordinateFrame], Action]:
    return lambda arguments, frame: Click(_point(arguments, frame), *_CLICKS[name])


def _scroll(name: str) -> Callable[[Mapping[str, Any], CoordinateFrame], Action]:
    def build(arguments: Mapping[str, Any], frame: CoordinateFrame) -> Action:
        pixels, direction = _as_number(arguments.get("pixels")), _direction(name, arguments)
        if pixels is None or direction is None:
            raise ActionParseError(f"pixels must be a number other than 0, got {shown(arguments.get('pixels'))}")
        # They are called pixels, but all runners turn the wheel by so many notches. The program decides how far.
        return Scroll(direction, _point(arguments, frame), min(max(round(abs(pixels)), 1), MAX_SCROLL_NOTCHES))

    return build


def read_text(arguments: Mapping[str, Any]) -> str:
    """Return the argument `text`.

    Raises:
        ActionParseError: it cannot be typed.
    """
    text = arguments.get("text")
    if _is_number(text):
        return text.written if isinstance(text, _Fraction) else str(text)
    # JSON can spell half of a surrogate pair, which is not a character and cannot be sent anywhere.
    if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
        raise ActionParseError(f"text must be a string of characters, got {shown(text)}")
    return text


def _key(arguments: Mapping[str, Any], frame: CoordinateFrame) -> Action:
    keys = arguments.get("keys")
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise ActionParseError(f"keys must be a list of key names, got {shown(keys)}")
    return Hotkey(tuple(name for key in keys for name in (("space",) if key == " " else _key_names(key))))


def _key_names(text: str) -> tuple[str, ...]:
    """Return the keys that one string names. Models write it with parts of the list: `keys=[ctrl`."""
    try:
        return parse_keys(text)
    except ActionParseError:
        return parse_keys(text.strip().removeprefix("keys=").strip("[]'\" "))


def _terminate(arguments: Mapping[str, Any], frame: CoordinateFrame) -> Action:
    """Finish, or fail if the status says so."""
    status = _lower(arguments.get("status", ""))
    if status in _FAILED:
        return Fail()
    if status not in _DONE:
        raise ActionParseError(f"status must be success or failure, got {shown(status)}")
    return Finish()


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any], CoordinateFrame], Action]] = {
    **{name: _click(name) for name in _CLICKS},
    "key": _key,
    "type": lambda arguments, frame: TypeText(read_text(arguments)),
    "mouse_move": lambda arguments, frame: Move(required_point(arguments, frame)),
    "left_click_drag": lambda arguments, frame: Drag(None, required_point(arguments, frame)),
    **{name: _scroll(name) for name in _SCROLLS},
    "wait": lambda arguments, frame: Wait(),  # the environment decides how long, as in OSWorld's runners
    "terminate": _terminate,
    "answer": lambda arguments, frame: Finish(read_text(arguments)),
}


def _is_number(value: object) -> TypeGuard[float]:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False


def _as_number(value: object) -> float | None:
    """Return a number, also from its text; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,9}(?:\.\d{1,9})?\s*", value):
        return float(value)
    return value if _is_number(value) else None


# --- Actions to arguments ----------------------------------------------------------------------------------------


def arguments_of(action: Action, frame: CoordinateFrame, tool: Tool) -> dict[str, Any]:
    """Return the arguments of a call for the action.

    Raises:
        ActionParseError: the tool has no such action.
    """
    arguments = _arguments_of_any(action, frame)
    if arguments["action"] in tool.lacks:
        raise ActionParseError(f"{TOOL} has no {arguments['action']} for this model")
    return arguments


def _arguments_of_any(action: Action, frame: CoordinateFrame) -> dict[str, Any]:
    match action:
        case Click(point=point, button=button, count=count):
            for name, click in _CLICKS.items():
                if click == (button, count):
                    return {"action": name, **_place(point, frame)}
            raise ActionParseError(f"{TOOL} has no click of {count} with the {button} button")
        case Drag(start=None, end=end):
            return {"action": "left_click_drag", **_place(end, frame)}
        case Move(point=point):
            return {"action": "mouse_move", **_place(point, frame)}
        case Scroll(direction=direction, point=point, notches=int() as notches) if 1 <= notches <= MAX_SCROLL_NOTCHES:
            name = "scroll" if direction in ("up", "down") else "hscroll"
            pixels = notches if direction in ("up", "right") else -notches
            return {"action": name, **_place(point, frame), "pixels": pixels}
        case Hotkey(keys=keys):
            return {"action": "key", "keys": list(keys)}
        case TypeText(text=text):
            return {"action": "type", "text": text}
        case Wait():
            return {"action": "wait", "time": _WRITTEN_WAIT_S}
        case Finish(answer=answer) if answer:
            return {"action": "answer", "text": answer}
        case Finish() | Fail():
            return {"action": "terminate", "status": "success" if isinstance(action, Finish) else "failure"}
    raise ActionParseError(f"{TOOL} has no action {action!r:.80}")


def _place(point: Point | None, frame: CoordinateFrame) -> dict[str, Any]:
    return {} if point is None else {"coordinate": list(frame.to_image(point))}
