"""What OSWorld's own parsers and ours make of the same replies, and each difference that is meant, as
`support/reply_differences.py` lists them.

The official side is the installed package's `mm_agents`. The code that its agents write runs over stand-ins of
pyautogui that note what they are told. What an official runner takes for no input, for DONE after three tries or breaks
over is malformed here, which counts as the same: docs/benchmark-fidelity.md.
"""

import builtins
import random
import re
from collections import Counter
from functools import cache, partial
from types import SimpleNamespace

import pytest
from support import ROOT, needs_words
from support.official_replies import (
    FRACTIONS,
    KEY_NOTATIONS,
    THOUGHTS,
    WORDS,
    Case,
    function_tags,
    qwen_cases,
    tagged,
    tool_json,
    ui_tars_cases,
)
from support.reply_differences import FURTHER, QWEN, UI_TARS

from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.errors import ActionError
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Point, Scroll, Size, TypeText, Wait

pytestmark = needs_words
SCREEN, LARGE = Size(640, 480), Size(1920, 1080)
SIZES = {"ui_tars_15": (Size(644, 476), SCREEN), "qwen25_vl": (SCREEN, SCREEN), "qwen3_vl": (SCREEN, SCREEN)}
"""The resized image and the screen; of the further families `FURTHER_SIZES`."""
FURTHER_SIZES = Size(1932, 1092), LARGE
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


def ui_tars_2_cases():
    for case in ui_tars_cases():
        pointless = re.search(r"scroll\(direction='(up|down|Up|DOWN|scroll down|page up)'", case.text)
        is_other = pointless or "scroll(start_box=''" in case.text
        yield Case("a scroll without a point", case.text) if is_other else case


CASES = {
    "ui_tars_15": list(ui_tars_cases()),
    "qwen25_vl": list(qwen_cases("qwen25_vl")),
    "qwen3_vl": list(qwen_cases("qwen3_vl")),
}
FURTHER_CASES = {"ui_tars_10": ui_tars_cases, "ui_tars_2": ui_tars_2_cases, "gui_owl": owl_cases}


def ours(family, text):
    """Events, or `NOTHING`."""
    try:
        reply = load_family(family).read(text, *SIZES.get(family, FURTHER_SIZES))
    except ActionError:
        return NOTHING
    return [event for event in map(event_of, reply.actions) if event != ("text", "")] or NOTHING


# --- What a reply does in the guest, as events ------------------------------------------------------------------------

NOTHING = "nothing"
"""No input, or malformed."""
END_OF = {Wait: "WAIT", Finish: "DONE", Fail: "FAIL"}
DOCUMENT = (ROOT / "docs" / "benchmark-fidelity.md").read_text(encoding="utf-8")
DIFFERENCES = UI_TARS | QWEN
"""The kinds of replies that UI-TARS-1.5's or Qwen's agents read differently."""


def event_of(action):
    match action:
        case Click(point=point, button=button, count=count):
            return ("click", button, count, point)
        case Drag(start=start, end=end):
            return ("drag", start, end)
        case Move(point=point):
            return ("move", point)
        case Hotkey(keys=keys):
            return ("keys", *keys)
        case TypeText(text=text):
            return ("text", text)
        case Scroll(direction=direction, point=point, notches=notches):
            way = "vertical" if direction in ("up", "down") else "horizontal"
            return ("scroll", way, (notches or 5) * (1 if direction in ("up", "right") else -1), point)
    return END_OF[type(action)]


class Noted:
    """Stand-ins of the guest's modules: each call becomes an event."""

    def __init__(self, press_is_text):
        self.events = []
        self.press_is_text = press_is_text

    def click(self, x=None, y=None, clicks=1, interval=0.0, button="left", duration=0.0):
        self.events.append(("click", button, clicks, None if x is None else Point(x, y)))

    def doubleClick(self, x=None, y=None, interval=0.0, button="left", duration=0.0):
        self.click(x, y, 2, button=button)

    def tripleClick(self, x=None, y=None, interval=0.0, button="left", duration=0.0):
        self.click(x, y, 3, button=button)

    def rightClick(self, x=None, y=None, interval=0.0, duration=0.0):
        self.click(x, y, button="right")

    def middleClick(self, x=None, y=None, interval=0.0, duration=0.0):
        self.click(x, y, button="middle")

    def moveTo(self, x, y, duration=0.0, tween=None):
        self.events.append(("move", Point(x, y)))

    def dragTo(self, x, y, duration=0.0, tween=None, button="left"):
        if isinstance(tween, str):
            raise TypeError("pyautogui calls it")
        is_moved = self.events and self.events[-1][0] == "move"
        self.events.append(("drag", self.events.pop()[1] if is_moved else None, Point(x, y)))

    def scroll(self, clicks, x=None, y=None, way="vertical"):
        if clicks:
            self.events.append(("scroll", way, clicks, None if x is None else Point(x, y)))

    vscroll = scroll

    def hscroll(self, clicks, x=None, y=None):
        self.scroll(clicks, x, y, "horizontal")

    def hotkey(self, *keys):
        keys = keys[0] if keys and isinstance(keys[0], list) else keys
        # X takes a press of a key that is down already for nothing.
        self.events.append(("keys", *dict.fromkeys("space" if key == " " else key for key in keys)))

    def press(self, keys, presses=1, interval=0.0):
        for key in (keys if isinstance(keys, list) else [keys]) * presses:
            if self.press_is_text and key == "enter":
                self.write("\n")
            else:
                self.hotkey(key if key else "space")  # the agent strips it of a space

    def write(self, message, interval=0.0):
        text = message
        if self.events and self.events[-1][0] == "text":
            text = self.events.pop()[1] + text
        if text:
            self.events.append(("text", text))

    typewrite = write

    def keyDown(self, key):
        self.events.append(("down", key))

    keyUp = keyDown


def imported(modules, name, *more):
    return modules[name] if name in modules else __import__(name, *more)


def events_of(codes, *, press_is_text):
    """What the agent's actions do in the guest, where an error is not looked at."""
    events = []
    for code in codes:
        if code in ("WAIT", "DONE", "FAIL"):
            events.append(code)
            continue
        noted = Noted(press_is_text)
        modules = {"pyautogui": noted, "time": SimpleNamespace(sleep=lambda seconds: None)}
        # Only this code's imports find them: `sys.modules` is also that of the threads which other tests left.
        own = vars(builtins) | {"__import__": partial(imported, modules)}
        try:
            exec(code, {**modules, "__builtins__": own})
        except (AttributeError, NameError, SyntaxError, TypeError):
            continue
        events += noted.events
    return events or NOTHING


def alike(first, second):
    """Equal, but that a point may lie two pixels aside: they cut off, we round; thousandths are 999 to them."""
    if isinstance(first, Point) and isinstance(second, Point):
        return all(abs(a - b) <= 2 for a, b in zip(first, second, strict=True))
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(alike, first, second))
    return first == second


# --- Theirs -----------------------------------------------------------------------------------------------------------


def ui_tars_15_events():
    import fidelity
    from support.official_agents import doubao, official_module, png

    module, screenshot = official_module("uitars15_v1"), png()

    def events(text):
        with doubao():
            agent = fidelity.reference_agent(module, [text], paste=False)
        prediction, codes = agent.predict("do it", {"screenshot": screenshot})
        return NOTHING if prediction == "client error" else events_of(codes, press_is_text=True)

    return events


def qwen_events(family):
    from support.official_agents import qwen_agent

    agent = qwen_agent(family)
    return lambda text: events_of(agent.parse_response(text, *SCREEN, *SCREEN)[1], press_is_text=False)


def further_events(family):
    from support.official_agents import official_module

    file, function, *more = {
        "ui_tars_10": ("uitars_agent", "parse_action_qwen2vl", 1000, LARGE.height, LARGE.width),
        "ui_tars_2": ("uitars15_v2", "parse_action_to_structure_output", 1000, LARGE.height, LARGE.width, "doubao"),
        "gui_owl": ("owl_agent", "parse_action_fncall", None, LARGE.height, LARGE.width),
    }[family]
    module = official_module(file)

    def events(text):
        codes = []
        for parsed in getattr(module, function)(text, *more):
            if parsed["action_type"] in ENDS:
                codes.append(ENDS[parsed["action_type"]])
                break
            codes.append(module.parsing_response_to_pyautogui_code(parsed, LARGE.height, LARGE.width, False))
        return events_of(codes, press_is_text=True)

    return events


@cache
def parser_of(family):
    if family in SIZES:
        return ui_tars_15_events() if family == "ui_tars_15" else qwen_events(family)
    return further_events(family)


def theirs(family, text):
    """Events, or `NOTHING` where the runner asks again or gives the task up."""
    broken = (AttributeError, IndexError, TypeError, UnboundLocalError, ValueError) if family in SIZES else Exception
    try:
        return parser_of(family)(text)
    except broken:
        return NOTHING


def differing(family, cases):
    """How many replies of each kind both read differently."""
    return Counter(case.kind for case in cases if not alike(theirs(family, case.text), ours(family, case.text)))


# --- Both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", CASES)
def test_both_make_the_same_of_a_reply_or_the_difference_is_listed(family):
    """A listed difference is one on every reply of its kind: one that is gone must leave the list."""
    cases = CASES[family]
    assert len({case.text for case in cases}) > 0.9 * len(cases)
    kinds = Counter(case.kind for case in cases)
    assert differing(family, cases) == {kind: number for kind, number in kinds.items() if kind in DIFFERENCES}


@pytest.mark.parametrize("family", FURTHER_CASES)
def test_so_do_the_further_families(family):
    cases = list(FURTHER_CASES[family]())
    assert len({case.text for case in cases}) >= 200
    differ = differing(family, cases)
    assert not {kind for kind in differ if kind not in FURTHER[family] | DIFFERENCES}, differ
    assert FURTHER[family] <= set(differ), "a difference that is gone must leave the list"
    assert sum(differ.values()) < len(cases) / 2


def test_every_listed_difference_occurs_most_replies_are_none_and_the_document_counts_them():
    kinds = Counter(case.kind for cases in CASES.values() for case in cases)
    assert not set(DIFFERENCES) - set(kinds)
    assert sum(number for kind, number in kinds.items() if kind not in DIFFERENCES) >= 500
    assert f" {kinds.total()} replies of {len(kinds)} kinds " in DOCUMENT


def test_the_rest_between_actions_is_that_of_the_official_parser():
    from support.official_agents import official_module

    click = {"action_type": "click", "action_inputs": {"start_box": "[0.5, 0.5, 0.5, 0.5]"}}
    code = official_module("uitars15_v1").parsing_response_to_pyautogui_code([click, click], 480, 640)
    assert f"time.sleep({GuiAgentConfig().between_actions_s:g})" in code
