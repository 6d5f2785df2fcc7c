"""GUI-Owl's grammar: what its tool offers beside Qwen2.5-VL's."""

import json

import pytest

from arpo_verl.agent.actions.owl import conclusion, parse_reply
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Click, Drag, Hotkey, Point, Size, TypeText

IMAGE, SCREEN = Size(1932, 1092), Size(1920, 1080)
CLEARED = (Hotkey(("ctrl", "a")), Hotkey(("backspace",)))


def call(**arguments):
    return f"<tool_call>\n{json.dumps({'name': 'computer_use', 'arguments': arguments})}\n</tool_call>"


def actions_of(**arguments):
    return parse_reply(f"<thinking>t</thinking>\n{call(**arguments)}", IMAGE, SCREEN).actions


@pytest.mark.parametrize(
    ("arguments", "actions"),
    [
        ({"action": "click", "coordinate": [966, 546]}, (Click(Point(960, 540)),)),
        ({"action": "middle_click", "coordinate": [966, 546]}, (Click(Point(960, 540), "middle"),)),
        (
            {"action": "drag", "coordinate": [0, 0], "coordinate2": [966, 546]},
            (Drag(Point(0, 0), Point(960, 540)),),
        ),
        ({"action": "key", "keys": ["ctrl", "s"]}, (Hotkey(("ctrl", "s")),)),
        ({"action": "type", "text": "a", "clear": 0, "enter": 1}, (TypeText("a\n"),)),
        ({"action": "type", "text": "a\n", "enter": "1"}, (TypeText("a\n"),)),
        ({"action": "type", "text": "a", "clear": 1}, (*CLEARED, TypeText("a"))),
    ],
)
def test_what_its_tool_offers(arguments, actions):
    assert actions_of(**arguments) == actions


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"action": "drag", "coordinate": [1, 2]}, "coordinate2 must say where to, got none"),
        ({"action": "type", "text": "a", "clear": "yes"}, "clear must be 0 or 1, got the text 'yes'"),
        ({"action": "type", "text": "a", "coordinate": [1, 2]}, "type takes text, clear, enter, not coordinate"),
        ({"action": "click", "coordinate": [1, 2], "coordinate2": [3, 4]}, "not coordinate2"),
        ({"action": "type", "text": "a", "clear": json.loads("[" * 400 + "]" * 400)}, "clear must be 0 or 1, got "),
        ({"action": "answer", "text": "42"}, "unknown action"),
    ],
)
def test_what_it_does_not_offer_is_refused(arguments, reason):
    with pytest.raises(ActionParseError, match=reason):
        actions_of(**arguments)


def test_a_reply_says_what_it_concludes():
    assert conclusion("<thinking>a</thinking>x<conclusion> Done. </conclusion>") == "Done."
    assert conclusion("<thinking>a</thinking>x") == "a" == conclusion("<thinking>a")
    assert conclusion("x") == ""
