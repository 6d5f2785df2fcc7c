"""The `computer_use` grammar of Qwen2.5-VL and Qwen3-VL: a tool call's JSON -> typed actions, and back.

A reply is a thought and then one tool call, or several:

    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [182, 126]}}
    </tool_call>

Qwen2.5-VL gives coordinates in pixels of the resized image, Qwen3-VL in thousandths of its sides. The text is a
model's: the JSON is read by Python's own decoder, and whatever is not in the grammar raises `ActionParseError`.

Source: the actions and argument names of the `computer_use` tool in Qwen's cookbooks, as OSWorld's runners
`mm_agents/qwen25vl_agent.py` and `qwen3vl_agent.py` use it. We depart from the runners: they take a call that they do
not understand for no action at all, paste typed text into Python source unescaped, count `terminate` with `failure` as
done (here it is FAIL, the right answer to an infeasible task), map thousandths by 999 (here both edges, 0 and 1000,
belong to the image) and turn the wheel by any number of notches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from arpo_verl.actions.calls import excerpt
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
    Move,
    Point,
    Scroll,
    Size,
    TypeText,
    Wait,
)

TOOL = "computer_use"

MAX_SCROLL_NOTCHES = 100
"""Most wheel notches of one action, several pages: a model's `pixels` of 100,000 would hold the desktop for minutes."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_END_OF_THINKING = "</think>"
_THOUSAND = Size(1000, 1000)
_WRITTEN_WAIT_S = 5

_CLICKS: Mapping[str, tuple[Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}


def parse_reply(text: str, image_size: Size, screen_size: Size, *, relative: bool = False) -> Reply:
    """Parse one reply of the model.

    Args:
        text: the reply as decoded.
        image_size: the size of the resized image that the model saw.
        screen_size: the size of the screen that the returned points are in.
        relative: whether coordinates are thousandths of the image's sides (Qwen3-VL) or its pixels (Qwen2.5-VL).

    Raises:
        ActionParseError: the text is not in the grammar, or a coordinate is outside the image; says why.
    """
    check_length(text)
    text = text.strip()
    start = _first_call(text)
    frame = _frame(image_size, screen_size, relative)
    actions: list[Action] = []
    for arguments in _read_calls(text, start):
        if len(actions) == MAX_ACTIONS:
            raise ActionParseError(f"a reply must have at most {MAX_ACTIONS} tool calls, got more")
        actions.append(_build_action(arguments, frame))
    return Reply(text[:start].strip(), tuple(actions))


def format_reply(reply: Reply, image_size: Size, screen_size: Size, *, relative: bool = False) -> str:
    """Write a reply in the canonical form; the inverse of `parse_reply`, points as exact as whole coordinates are.

    Raises:
        ActionParseError: the grammar has no such action (a drag from elsewhere than the pointer, a scroll without an
            amount), or the thought holds the grammar's own tags.
    """
    thought = reply.thought.strip()
    if _OPEN in thought or _END_OF_THINKING in thought:
        raise ActionParseError(f"a thought must not hold the grammar's own tags, got {excerpt(thought)}")
    frame = _frame(image_size, screen_size, relative)
    calls = ({"name": TOOL, "arguments": _arguments(action, frame)} for action in reply.actions)
    written = [f"{_OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{_CLOSE}" for call in calls]
    return "\n".join([thought, *written] if thought else written)


def _frame(image: Size, screen: Size, relative: bool) -> Frame:
    return Frame(_THOUSAND, screen, "thousandths") if relative else Frame(image, screen)


# --- Tool calls --------------------------------------------------------------------------------------------------


def _first_call(text: str) -> int:
    """Where the calls begin: a model that thinks aloud may name the tag before it has ended its thinking."""
    thinking = text.find(_END_OF_THINKING)
    start = text.find(_OPEN)
    if thinking >= 0 and (thinking < start or text.startswith("<think>")):
        start = text.find(_OPEN, thinking)
    if start < 0:
        raise ActionParseError(f"a reply must have its action within {_OPEN}{_CLOSE}, got {excerpt(text)}")
    return start


def _read_calls(text: str, position: int) -> Iterator[dict[str, Any]]:
    """Yield the arguments of every call from `position` to the end of the text; nothing may stand between them."""
    while position < len(text):
        call, position = _read_json(text, _expect(text, position, _OPEN))
        position = _expect(text, position, _CLOSE)
        if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["arguments"], dict):
            raise ActionParseError("a tool call must be a JSON object with name and arguments")
        if call["name"] != TOOL:
            raise ActionParseError(f"the tool must be {TOOL}, got {_shown(call['name'])}")
        yield {name: value for name, value in call["arguments"].items() if value is not None}


def _read_json(text: str, position: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise ActionParseError(f"a tool call must be JSON: {error.msg}, got {excerpt(text[error.pos :])}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets nested thousands deep
        raise ActionParseError(f"a tool call must be JSON of sensible size: {str(error)[:80]}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ActionParseError("a tool call must name each argument once")
    return result


def _no_constant(name: str) -> Any:
    raise ActionParseError(f"a number must be finite, got {name}")


# Newlines within strings, which some models leave unescaped, are taken as they are.
_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant, strict=False)


def _expect(text: str, position: int, tag: str) -> int:
    position = _skip_space(text, position)
    if not text.startswith(tag, position):
        raise ActionParseError(f"expected {tag}, got {excerpt(text[position:])}")
    return _skip_space(text, position + len(tag))


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


# --- Actions from arguments --------------------------------------------------------------------------------------


def _build_action(arguments: dict[str, Any], frame: Frame) -> Action:
    name = arguments.pop("action", None)
    if not isinstance(name, str):
        raise ActionParseError("a tool call must name its action")
    if name in _CLICKS:
        action: Action = Click(_point(arguments, frame), *_CLICKS[name])
    elif name in _BUILDERS:
        action = _BUILDERS[name](arguments, frame)
    else:
        known = ", ".join(sorted([*_CLICKS, *_BUILDERS]))
        raise ActionParseError(f"unknown action {excerpt(name)}; known: {known}")
    if arguments:
        raise ActionParseError(f"{name} has no argument {', '.join(excerpt(key) for key in list(arguments)[:3])}")
    return action


def _point(arguments: dict[str, Any], frame: Frame) -> Point | None:
    """The argument `coordinate`; None where there is none, which is where the pointer is."""
    value = arguments.pop("coordinate", None)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(_is_number(number) for number in value):
        raise ActionParseError(f"coordinate must be [x, y], got {_shown(value)}")
    return frame.to_screen(*value)


def _required_point(arguments: dict[str, Any], frame: Frame) -> Point:
    point = _point(arguments, frame)
    if point is None:
        raise ActionParseError("coordinate must say where to, got none")
    return point


def _scroll(arguments: dict[str, Any], frame: Frame, ahead: Direction, back: Direction) -> Action:
    pixels = arguments.pop("pixels", None)
    if not _is_number(pixels) or pixels == 0:
        raise ActionParseError(f"pixels must be a number other than 0, got {_shown(pixels)}")
    # Called pixels, but wheel notches to every runner; what a notch moves is the program's to decide.
    notches = min(max(round(abs(pixels)), 1), MAX_SCROLL_NOTCHES)
    return Scroll(ahead if pixels > 0 else back, _point(arguments, frame), notches)


def _type(arguments: dict[str, Any], frame: Frame) -> Action:
    text = _text(arguments)
    if not text:
        raise ActionParseError("type must have text, got none")
    return TypeText(text)


def _text(arguments: dict[str, Any]) -> str:
    text = arguments.pop("text", None)
    # JSON can spell half of a surrogate pair, which is no character and cannot be sent anywhere.
    if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
        raise ActionParseError(f"text must be a string of characters, got {_shown(text)}")
    return text


def _key(arguments: dict[str, Any], frame: Frame) -> Action:
    keys = arguments.pop("keys", None)
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise ActionParseError(f"keys must be a list of key names, got {_shown(keys)}")
    return Hotkey(tuple(name for key in keys for name in (("space",) if key == " " else parse_keys(key))))


def _wait(arguments: dict[str, Any], frame: Frame) -> Action:
    seconds = arguments.pop("time", 0)
    if not _is_number(seconds) or seconds < 0:
        raise ActionParseError(f"time must be a number of seconds, got {_shown(seconds)}")
    return Wait()  # how long is the environment's to decide, as in OSWorld's runners


def _terminate(arguments: dict[str, Any], frame: Frame) -> Action:
    status = arguments.pop("status", None)
    if status not in ("success", "failure"):
        raise ActionParseError(f"status must be success or failure, got {_shown(status)}")
    return Finish() if status == "success" else Fail()


_BUILDERS: Mapping[str, Callable[[dict[str, Any], Frame], Action]] = {
    "key": _key,
    "type": _type,
    "mouse_move": lambda arguments, frame: Move(_required_point(arguments, frame)),
    "left_click_drag": lambda arguments, frame: Drag(None, _required_point(arguments, frame)),
    "scroll": lambda arguments, frame: _scroll(arguments, frame, "up", "down"),
    "hscroll": lambda arguments, frame: _scroll(arguments, frame, "right", "left"),
    "wait": _wait,
    "terminate": _terminate,
    "answer": lambda arguments, frame: Finish(_text(arguments)),
}


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False


def _shown(value: object) -> str:
    """A value for a message: never its inside, which a model may have nested a thousand deep."""
    if isinstance(value, (str, int, float, type(None))):
        return excerpt(ascii(value))
    return type(value).__name__


# --- Actions to arguments ----------------------------------------------------------------------------------------


def _arguments(action: Action, frame: Frame) -> dict[str, Any]:
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


def _place(point: Point | None, frame: Frame) -> dict[str, Any]:
    return {} if point is None else {"coordinate": list(frame.to_image(point))}
