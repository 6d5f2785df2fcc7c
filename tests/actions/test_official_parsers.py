"""What OSWorld's own parsers and ours make of the same replies, and each difference that is meant, as
docs/benchmark-fidelity.md lists them.

The official side is the installed package's: `mm_agents`' agents of UI-TARS-1.5, Qwen2.5-VL and Qwen3-VL. The code that
they write runs over stand-ins of pyautogui that note what they are told. What an official runner takes for no input,
for DONE after three tries or breaks over is malformed here, which counts as the same: docs/benchmark-fidelity.md.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from support import ROOT, needs_words
from support.official_replies import qwen_cases, ui_tars_cases

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.errors import ActionParseError
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Point, Scroll, Size, TypeText, Wait

pytestmark = needs_words
SCREEN = Size(640, 480)
NOTHING = "nothing"
"""No input, or malformed."""
CASES = {
    "ui_tars": list(ui_tars_cases()),
    "qwen25_vl": list(qwen_cases("qwen25_vl")),
    "qwen3_vl": list(qwen_cases("qwen3_vl")),
}
IMAGES = {"ui_tars": Size(644, 476), "qwen25_vl": SCREEN, "qwen3_vl": SCREEN}
ENDS = {Wait: "WAIT", Finish: "DONE", Fail: "FAIL"}


# --- Ours -------------------------------------------------------------------------------------------------------------


def ours(grammar, text):
    """Events, or `NOTHING`."""
    try:
        reply = GRAMMARS[grammar].parse(text, IMAGES[grammar], SCREEN)
    except ActionParseError:
        return NOTHING
    return [event for event in map(event_of, reply.actions) if event != ("text", "")] or NOTHING


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
    return ENDS[type(action)]


# --- Theirs -----------------------------------------------------------------------------------------------------------


class Noted:
    """Stand-ins of the guest's modules: each call becomes an event."""

    def __init__(self, press_is_text):
        self.events = []
        self.press_is_text = press_is_text

    def click(self, x=None, y=None, clicks=1, button="left"):
        self.events.append(("click", button, clicks, None if x is None else Point(x, y)))

    def doubleClick(self, x=None, y=None, button="left"):
        self.click(x, y, 2, button)

    def rightClick(self, x=None, y=None):
        self.click(x, y, 1, "right")

    def middleClick(self, x=None, y=None):
        self.click(x, y, 1, "middle")

    def moveTo(self, x, y):
        self.events.append(("move", Point(x, y)))

    def dragTo(self, x, y, duration=0.0):
        is_moved = self.events and self.events[-1][0] == "move"
        self.events.append(("drag", self.events.pop()[1] if is_moved else None, Point(x, y)))

    def scroll(self, notches, x=None, y=None):
        if notches:
            self.events.append(("scroll", "vertical", notches, None if x is None else Point(x, y)))

    def hotkey(self, *keys):
        # X takes a press of a key that is down already for nothing.
        self.events.append(("keys", *dict.fromkeys("space" if key == " " else key for key in keys)))

    def press(self, key):
        if self.press_is_text:
            self.write("\n")
        else:
            self.hotkey(key if key else "space")  # the agent strips it of a space

    def write(self, text, interval=0.0):
        if self.events and self.events[-1][0] == "text":
            text = self.events.pop()[1] + text
        if text:
            self.events.append(("text", text))

    typewrite = write

    def keyDown(self, key):
        self.events.append(("down", key))

    keyUp = keyDown


def events_of(codes, *, press_is_text):
    """What the agent's actions do in the guest, where an error is not looked at."""
    events = []
    for code in codes:
        if code in ("WAIT", "DONE", "FAIL"):
            events.append(code)
            continue
        noted = Noted(press_is_text)
        modules = {"pyautogui": noted, "time": SimpleNamespace(sleep=lambda seconds: None)}
        with patch.dict(sys.modules, modules):
            try:
                exec(code, dict(modules))
            except (SyntaxError, TypeError):
                continue
        events += noted.events
    return events or NOTHING


@pytest.fixture(scope="module")
def theirs():
    """`theirs(grammar, text)`: events, or `NOTHING`."""
    from support.official_agents import official_module, png, qwen_agent

    module = official_module("uitars15_v1")
    qwen = {kind: qwen_agent(kind) for kind in ("qwen25_vl", "qwen3_vl")}
    screenshot = png()

    def call(grammar, text):
        if grammar == "ui_tars":
            return ui_tars_events(module, text, screenshot)
        try:
            codes = qwen[grammar].parse_response(text, *SCREEN, *SCREEN)[1]
        except (AttributeError, IndexError, TypeError, ValueError):  # the runner gives the task up
            return NOTHING
        return events_of(codes, press_is_text=False)

    return call


def ui_tars_events(module, text, screenshot):
    import fidelity

    with patch.dict("os.environ", {"DOUBAO_API_URL": "unused", "DOUBAO_API_KEY": "unused"}):
        agent = fidelity.reference_agent(module, [text], paste=False)
    try:
        prediction, codes = agent.predict("do it", {"screenshot": screenshot})
    except (TypeError, UnboundLocalError):  # the runner gives the task up
        return NOTHING
    return NOTHING if prediction == "client error" else events_of(codes, press_is_text=True)


# --- Both -------------------------------------------------------------------------------------------------------------


def alike(first, second):
    """Equal, but that a point may lie two pixels aside: they cut off, we round; thousandths are 999 to them."""
    if isinstance(first, Point) and isinstance(second, Point):
        return all(abs(a - b) <= 2 for a, b in zip(first, second, strict=True))
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(alike, first, second))
    return first == second


@dataclass(frozen=True)
class Compared:
    """One reply and what both make of it."""

    kind: str
    text: str
    theirs: object
    ours: object


@pytest.fixture(scope="module", params=CASES)
def compared(request, theirs):
    grammar = request.param
    return [
        Compared(case.kind, case.text, theirs(grammar, case.text), ours(grammar, case.text)) for case in CASES[grammar]
    ]


DOCUMENT = (ROOT / "docs" / "benchmark-fidelity.md").read_text(encoding="utf-8")
DIFFERENCES = {
    line.split(" | ")[0].removeprefix("| ")
    for table in DOCUMENT.split("| in the reply | OSWorld's runner | here | why |\n|---|---|---|---|\n")[1:]
    for line in table.partition("\n\n")[0].splitlines()
}
"""The kinds of replies that the document's tables list."""


def test_there_are_enough_replies():
    assert sum(map(len, CASES.values())) >= 500
    assert all(len({case.text for case in cases}) > 0.9 * len(cases) for cases in CASES.values())


def test_both_make_the_same_of_a_reply_or_the_difference_is_listed(compared):
    unexpected = [case for case in compared if not alike(case.theirs, case.ours) and case.kind not in DIFFERENCES]
    assert not unexpected


def test_each_listed_difference_is_one(compared):
    """On every reply of its kind: a difference that is gone must leave the list."""
    gone = [case for case in compared if alike(case.theirs, case.ours) and case.kind in DIFFERENCES]
    assert not gone


def test_every_listed_difference_occurs_and_most_replies_are_no_difference():
    kinds = Counter(case.kind for cases in CASES.values() for case in cases)
    assert not set(DIFFERENCES) - set(kinds)
    assert sum(number for kind, number in kinds.items() if kind not in DIFFERENCES) >= 500


def test_the_document_says_how_many_replies_there_are():
    cases = [case for cases in CASES.values() for case in cases]
    assert f" {len(cases)} replies of {len({case.kind for case in cases})} kinds " in DOCUMENT


def test_the_rest_between_actions_is_that_of_the_official_parser():
    from support.official_agents import official_module

    click = {"action_type": "click", "action_inputs": {"start_box": "[0.5, 0.5, 0.5, 0.5]"}}
    code = official_module("uitars15_v1").parsing_response_to_pyautogui_code([click, click], 480, 640)
    assert f"time.sleep({GuiAgentConfig().between_actions_s:g})" in code
