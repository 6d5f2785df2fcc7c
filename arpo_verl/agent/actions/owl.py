"""Read and write the `computer_use` grammar of GUI-Owl: Qwen2.5-VL's, with some actions of its own.

A reply is `<thinking>...</thinking>`, a tool call, and `<conclusion>...</conclusion>`. Only the call acts. Left clicks
and drags are named `click` and `drag`, a drag has both ends, and `type` may clear the field first and press Enter
after. OSWorld's runner is `mm_agents/owl_agent.py`; `tests/agent/actions/test_official_parsers.py` names each
difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from arpo_verl.agent.actions.calls import excerpt, shown
from arpo_verl.agent.actions.computer_use import (
    QWEN25,
    TOOL,
    arguments_of,
    build_action,
    first_call,
    read_calls,
    read_text,
    required_point,
)
from arpo_verl.agent.actions.leftovers import refuse_leftovers
from arpo_verl.agent.actions.pyautogui import SCROLL_NOTCHES
from arpo_verl.agent.actions.reply import MAX_ACTIONS, CoordinateFrame, Reply, check_length
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Action, Click, Drag, Finish, Hotkey, Point, Scroll, Size, TypeText

_THINKING, _CONCLUSION = ("<thinking>", "</thinking>"), ("<conclusion>", "</conclusion>")
_CLEAR = (Hotkey(("ctrl", "a")), Hotkey(("backspace",)))


def parse_reply(text: str, image_size: Size, screen_size: Size) -> Reply:
    """Parse one reply of the model. Arguments and errors are those of `computer_use.parse_reply`."""
    check_length(text)
    text = text.strip()
    first = first_call(text)
    frame = CoordinateFrame(image_size, screen_size)
    actions: list[Action] = []
    for arguments in read_calls(text, first):
        actions += _build(arguments, frame)
        if len(actions) > MAX_ACTIONS:
            raise ActionParseError(f"a reply must have at most {MAX_ACTIONS} actions, got more")
    return Reply(between(text, *_THINKING) or text[: first.start()].strip(), tuple(actions))


def format_reply(reply: Reply, image_size: Size, screen_size: Size) -> str:
    """Write a reply in the canonical form. This inverts `parse_reply`, except that coordinates are whole numbers.

    Raises:
        ActionParseError: the grammar has no such action, or the thought contains the grammar's own tags.
    """
    if any(tag in reply.thought for tag in (*_THINKING, *_CONCLUSION)):
        raise ActionParseError(f"a thought must not hold the grammar's own tags, got {excerpt(reply.thought)}")
    frame = CoordinateFrame(image_size, screen_size)
    calls = [_call(action, frame) for action in reply.actions]
    thought = reply.thought.strip()
    return "\n".join([f"{_THINKING[0]}{thought}{_THINKING[1]}", *calls] if thought else calls)


def conclusion(text: str) -> str:
    """Return what a reply says that it did, as the runner lists it: its conclusion, or else its thought."""
    return between(text, *_CONCLUSION) or between(text, *_THINKING)


def between(text: str, opening: str, closing: str) -> str:
    """Return the text after the last opening tag, up to the closing tag or the end; "" without an opening tag."""
    _, found, rest = text.rpartition(opening)
    return rest.partition(closing)[0].strip() if found else ""


def _build(arguments: Mapping[str, Any], frame: CoordinateFrame) -> list[Action]:
    """Return the actions of one call."""
    match arguments.get("action"):
        case "click":
            return [build_action({**arguments, "action": "left_click"}, frame, QWEN25)]
        case "drag" | "left_click_drag" as name:
            said = {key: value for key, value in arguments.items() if key != "action"}
            refuse_leftovers(name, said, ("coordinate", "coordinate2"))
            start, end = (required_point(arguments, frame, key) for key in ("coordinate", "coordinate2"))
            return [Drag(start, end)]
        case "type":
            said = {key: value for key, value in arguments.items() if key != "action"}
            refuse_leftovers("type", said, ("text", "clear", "enter"))
            clear, enter = (_flag(key, arguments.get(key, 0)) for key in ("clear", "enter"))
            text = read_text(arguments)
            typed = TypeText(text if not enter or text.endswith("\n") else f"{text}\n")
            return [*(_CLEAR if clear else ()), typed]
    return [build_action(arguments, frame, QWEN25)]


def _flag(name: str, value: object) -> bool:
    if value in (0, 1, "0", "1"):
        return value in (1, "1")
    raise ActionParseError(f"{name} must be 0 or 1, got {shown(value)}")


def _call(action: Action, frame: CoordinateFrame) -> str:
    match action:
        case Click(point=point, button="left", count=1):
            place = {} if point is None else {"coordinate": list(frame.to_image(point))}
            arguments: dict[str, Any] = {"action": "click", **place}
        case Drag(start=Point() as start, end=end):
            points = {"coordinate": list(frame.to_image(start)), "coordinate2": list(frame.to_image(end))}
            arguments = {"action": "drag", **points}
        case Drag():
            raise ActionParseError("a drag must say where from, got the pointer's place")
        case Finish(answer=answer) if answer:
            raise ActionParseError(f"there is no call with an answer, got {excerpt(answer)}")
        case TypeText(text=text):
            arguments = {"action": "type", "text": text, "clear": 0, "enter": 0}
        case Scroll(notches=None):
            arguments = arguments_of(replace(action, notches=SCROLL_NOTCHES), frame, QWEN25)
        case _:
            arguments = arguments_of(action, frame, QWEN25)
    call = json.dumps({"name": TOOL, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
