"""The further families beside their official parsers: the same, or a difference that `reply_differences` lists.

UI-TARS-1.5's and Qwen's are compared in `tests/agent/actions/test_official_parsers.py`.
"""

import random
import re
from collections import Counter

import pytest
from support import needs_words
from support.official_events import DIFFERENCES, NOTHING, alike, event_of, events_of
from support.official_replies import (
    FRACTIONS,
    KEY_NOTATIONS,
    THOUGHTS,
    WORDS,
    Case,
    function_tags,
    tagged,
    tool_json,
    ui_tars_cases,
)
from support.reply_differences import FURTHER

from arpo_verl.agent.models.family import load_family
from arpo_verl.errors import ActionError
from arpo_verl.types import Size

pytestmark = needs_words
SCREEN = Size(1920, 1080)
ENDS = {"finished": "DONE", "wait": "WAIT", "error_env": "FAIL", "call_user": "FAIL", "fail": "FAIL"}


def owl_cases():
    """Replies with each of the tool's actions, and ways to write them."""
    rng = random.Random(7)

    def place():
        return [rng.randint(0, 1900), rng.randint(0, 1070)]

    def reply(number, **arguments):
        thought, call = THOUGHTS[number % len(THOUGHTS)], tagged(tool_json(**arguments))
        said = f"<conclusion>{WORDS[number % len(WORDS)]}</conclusion>" if number % 3 else ""
        return f"<thinking>{thought}</thinking>\n{call}\n{said}"

    for number in range(14):
        for name in ("click", "left_click", "right_click", "double_click", "mouse_move"):
            yield Case("a pointer's action", reply(number, action=name, coordinate=place()))
        for name in ("drag", "left_click_drag"):
            yield Case("a drag", reply(number, action=name, coordinate=place(), coordinate2=place()))
        yield Case("middle_click", reply(number, action="middle_click", coordinate=place()))
        yield Case("a scroll", reply(number, action="scroll", pixels=rng.choice([-5, -3, -1, 1, 4])))
        yield Case("an end", reply(number, action="terminate", status="success" if number % 2 else "failure"))
        yield Case("wait", reply(number, action="wait", time=number))
    for number, keys in enumerate((["enter"], ["ctrl", "c"], ["ctrl", "shift", "t"], ["f5"], ["alt", "f4"], ["a"])):
        yield Case("keys", reply(number, action="key", keys=keys))
    for number, word in enumerate(w for w in WORDS if "'" not in w):
        for clear, enter in ((0, 0), (1, 0), (0, 1), (1, 1)):
            yield Case("typed text", reply(number, action="type", text=word, clear=clear, enter=enter))
        yield Case("typed text", reply(number, action="type", text=word))
    for number, text in enumerate(("it's", "C:\\temp", " a ", "a\nb")):
        kind = "quotes, newlines, backslashes and outer spaces in typed text"
        yield Case(kind, reply(number, action="type", text=text))
    for x, y in FRACTIONS:
        yield Case("a position in fractions", reply(1, action="click", coordinate=[x, y]))
        yield Case("a position in fractions", reply(1, action="drag", coordinate=[30, 40], coordinate2=[x, y]))
    for keys in KEY_NOTATIONS:
        yield Case("another notation of keys", reply(1, action="key", keys=[keys]))
    for place in ("(30, 40)", [[30, 40]], {"x": 30}, ["30", "40"]):
        yield Case("an odd coordinate", reply(1, action="click", coordinate=place))
    yield Case("a coordinate of three numbers", reply(1, action="click", coordinate=[30, 40, 50]))
    yield Case("a call in Qwen3.5's tags", tagged(function_tags(action="click", coordinate=[30, 40])))
    yield Case("several calls", "\n".join(reply(n, action="key", keys=["enter"]) for n in range(2)))
    yield Case("a point outside of the image", reply(1, action="click", coordinate=[1940, 20]))
    yield Case("a click without a place", reply(2, action="click"))
    for arguments in ({"action": "fly"}, {"action": "drag", "coordinate": [1, 2]}, {}):
        yield Case("not in the tool", reply(0, **arguments))


def kinds_of(family, cases):
    for case in cases:
        pointless = re.search(r"scroll\(direction='(up|down|Up|DOWN|scroll down|page up)'", case.text)
        pointless = pointless or "scroll(start_box=''" in case.text
        yield Case("a scroll without a point", case.text) if family == "ui_tars_2" and pointless else case


def ours(family, text):
    try:
        reply = load_family(family).read(text, Size(1932, 1092), SCREEN)
    except ActionError:
        return NOTHING
    events = [event for event in map(event_of, reply.actions) if event != ("text", "")]
    return events or NOTHING


@pytest.fixture(scope="module")
def theirs():
    """`theirs(family, text)`: events, or `NOTHING`."""
    from support.official_agents import official_module

    files = {"ui_tars_10": "uitars_agent", "ui_tars_2": "uitars15_v2", "gui_owl": "owl_agent"}
    modules = {family: official_module(file) for family, file in files.items()}
    size = (SCREEN.height, SCREEN.width)
    parsers = {
        "ui_tars_10": lambda text: modules["ui_tars_10"].parse_action_qwen2vl(text, 1000, *size),
        "ui_tars_2": lambda text: modules["ui_tars_2"].parse_action_to_structure_output(text, 1000, *size, "doubao"),
        "gui_owl": lambda text: modules["gui_owl"].parse_action_fncall(text, None, *size),
    }

    def call(family, text):
        codes = []
        try:
            for parsed in parsers[family](text):
                if parsed["action_type"] in ENDS:
                    codes.append(ENDS[parsed["action_type"]])
                    break
                codes.append(modules[family].parsing_response_to_pyautogui_code(parsed, *size, False))
        except Exception:  # the runner asks again, or gives the task up
            return NOTHING
        return events_of(codes, press_is_text=True)

    return call


CASES = {"ui_tars_10": ui_tars_cases, "ui_tars_2": ui_tars_cases, "gui_owl": owl_cases}


@pytest.mark.parametrize("family", CASES)
def test_both_make_the_same_of_a_reply_or_the_difference_is_listed(family, theirs):
    cases = list(kinds_of(family, CASES[family]()))
    assert len({case.text for case in cases}) >= 200
    differ = Counter(case.kind for case in cases if not alike(theirs(family, case.text), ours(family, case.text)))
    own = FURTHER[family]
    assert not {kind for kind in differ if kind not in own | DIFFERENCES}, differ
    assert own <= set(differ), "a difference that is gone must leave the list"
    assert sum(differ.values()) < len(cases) / 2
