"""The further families beside their official parsers: the same, or a difference that `reply_differences` lists.

UI-TARS-1.5's and Qwen's are compared in `tests/actions/test_official_parsers.py`.
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

from arpo_verl.errors import ActionError
from arpo_verl.models.family import load_family
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


def opencua_cases():
    """Replies with each function of pyautogui and `computer` that the code may call, and ways to write them."""
    rng = random.Random(9)

    def place():
        return rng.randint(700, 1900), rng.randint(400, 1070)

    def case(kind, number, code, language="python", action="I do it."):
        thought = "" if number % 3 == 0 else f"## Thought:\n{THOUGHTS[number % len(THOUGHTS)].replace('#', '')}\n\n"
        step = f"# Step {number}:\n" if number % 2 else ""
        said = f"## Action:\n{action}\n\n" if action else ""
        return Case(kind, f"{step}{thought}{said}## Code:\n```{language}\n{code}\n```")

    clicks = ("click", "rightClick", "middleClick", "doubleClick", "tripleClick")
    for number in range(8):
        (x, y), (u, v) = place(), place()
        for name in (*clicks, "moveTo"):
            yield case("a pointer's action", number, f"pyautogui.{name}(x={x}, y={y})")
            yield case("a pointer's action", number, f"pyautogui.{name}({x}, {y})")
        for how in ("button='right'", "clicks=2", "clicks=3, interval=0.1", "clicks=2, button='middle', duration=0.2"):
            yield case("a pointer's action", number, f"pyautogui.click(x={x}, y={y}, {how})")
        yield case("a pointer's action", number, f"# there\npyautogui.click({x}.5, {y})  # it's that")
        drag = f"pyautogui.moveTo({x}, {y})\npyautogui.dragTo({u}, {v}, button='left')"
        yield case("a drag", number, drag)
        yield case("a drag with a duration and a button", number, drag.replace("button=", "duration=0.5, button="))
        yield case("a point in fractions", number, f"pyautogui.click(x=0.{x // 4 + 500}, y=0.{y // 4 + 600})")
        yield case("a point outside of the image", number, f"pyautogui.click(x={x + 1300}, y={y})")
        for name in ("scroll", "vscroll", "hscroll"):
            yield case("a scroll", number, f"pyautogui.{name}({number - 9})")
            yield case("a scroll", number, f"pyautogui.{name}(clicks={number + 1}, x={x}, y={y})")
        yield case("a scroll at a point by an amount without a name", number, f"pyautogui.scroll(-5, x={x}, y={y})")
        code = f"pyautogui.click({x}, {y})\npyautogui.write('f(x)')"
        yield case("a bracket in typed text beside a click", number, code)
        yield case("several actions", number, f"pyautogui.click({x}, {y}); pyautogui.press('enter')")
        yield case("wait", number, f"computer.wait({number})", language="code")
        yield case("an action before an end", number, f"pyautogui.click({x}, {y})\ncomputer.wait()")
    for number, key in enumerate(("enter", "tab", "f5", "a", "esc", " ", "+")):
        yield case("keys", number, f"import pyautogui\npyautogui.press({key!r})")
        yield case("keys", number, f"pyautogui.press({key!r}, presses={number + 1}, interval=0.1)")
        yield case("keys", number, f"pyautogui.press([{key!r}, 'up', 'up'])")
    for number, keys in enumerate((["ctrl", "c"], ["ctrl", "shift", "t"], ["alt", "f4"])):
        yield case("keys", number, f"pyautogui.hotkey({', '.join(map(repr, keys))})")
        yield case("keys", number, f"pyautogui.hotkey({keys})")
        yield case("keydown, keyup", number, f"pyautogui.keyDown({keys[0]!r})\npyautogui.keyUp({keys[0]!r})")
    for number, word in enumerate((*WORDS, "it's", 'say "hi"', "a\nb", "C:\\temp", "\u00e9\u4e2d", "a, b)", "  x ")):
        yield case("typed text", number, f"pyautogui.write({word!r})")
        yield case("typed text", number, f"pyautogui.typewrite(message={word!r}, interval=0.05)", language="")
        yield case("typed text", number, f'import pyautogui\npyautogui.write("""{word} .""")'.replace("\\", "\\\\"))
    for keys in KEY_NOTATIONS:
        yield case("another notation of keys", 1, f"pyautogui.press({keys!r})")
    for number, status in enumerate(("success", "failure")):
        yield case("an end", number, f"computer.terminate(status='{status}')", language="code", action="")
        yield case("an end", number, f'computer.terminate("{status}", answer="""4 2""")', language="code")
    for answer in ("a failure", "it failed"):
        yield case("an answer with the word fail", 1, f"computer.terminate(status='success', answer='{answer}')")
        yield case("an end's name in typed text", 1, f"pyautogui.write('computer.wait() {answer}')")
    for end in ("computer.wait", '{"name": "computer.terminate", "parameters": {"status": "success"}}'):
        yield case("an end that is no call", 1, end)
    beyond = ("for _ in range(2): pyautogui.press('tab')", "x = 900\npyautogui.press('tab')")
    for number, code in enumerate((*beyond, "pyautogui.write('a' + 'b')", "pyautogui.write(f'{1}')")):
        yield case("Python beyond calls", number, code)
        yield case("time.sleep", number, f"import time\ntime.sleep({number + 1})")
    for number, key in enumerate(("Return", "Ctrl", "page down", "control", "ArrowLeft", "super")):
        yield case("names of keys", number, f"pyautogui.press({key!r})")
        yield case("more than 8 actions", number, "pyautogui.press('a')\n" * (9 + number))
        whole = case("text around", number, "pyautogui.press('a')")
        yield whole._replace(text=whole.text.replace("## Code", "```\nno\n```\n## Code") + "\nThen I look at it.")
        yield case("no action", number, "pyautogui.press('a')", action="")
        yield case("no action", number, "computer.wait()", action="")
    for code in ("", "pyautogui", "pyautogui.fly()", "pyautogui.click(", "fly()", "pyautogui.press(key='a')"):
        yield case("not in the grammar", 3, code)
    for code in (
        "pyautogui.click(1, 2, 3, 4, 5, 6, 7, 8, 9)",
        "pyautogui.click(1, 2, keys='ctrl')",
        "computer.terminate()",
    ):
        yield case("not in the grammar", 3, code)
    for text in ("", "I cannot help.", "## Action:\nI do it.", "## Action:\nI do it.\n```python\npyautogui.press('a')"):
        yield Case("no code", text)
    yield case("control characters", 1, r"pyautogui.write('a\x07b')")
    yield case("a reply of more than 40,000 characters", 1, f"pyautogui.write('{'a' * 40_000}')")


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
    return (one_by_one(events) if family == "opencua" else events) or NOTHING


def one_by_one(events):
    """A key that is pressed several times as so many events, as `pyautogui.press` says it."""
    repeated = (event[0] == "keys" and len(set(event)) == 2 for event in events)
    return [
        one
        for event, again in zip(events, repeated, strict=True)
        for one in ([event[:2]] * (len(event) - 1) if again else [event])
    ]


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

    opencua = official_module("opencua.opencua_agent").parse_response_to_cot_and_action

    def call(family, text):
        if family == "opencua":
            said, codes, _ = opencua(text, SCREEN, "qwen25")
            return NOTHING if "<Error>" in said else events_of(codes, press_is_text=False)
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


CASES = {"ui_tars_10": ui_tars_cases, "ui_tars_2": ui_tars_cases, "gui_owl": owl_cases, "opencua": opencua_cases}


@pytest.mark.parametrize("family", CASES)
def test_both_make_the_same_of_a_reply_or_the_difference_is_listed(family, theirs):
    cases = list(kinds_of(family, CASES[family]()))
    assert len({case.text for case in cases}) >= 200
    differ = Counter(case.kind for case in cases if not alike(theirs(family, case.text), ours(family, case.text)))
    own = {difference.kind for difference in FURTHER[family]}
    assert not {kind for kind in differ if kind not in own | DIFFERENCES}, differ
    assert own <= set(differ), "a difference that is gone must leave the list"
    assert sum(differ.values()) < len(cases) / 2
