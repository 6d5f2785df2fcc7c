"""Typed actions as pyautogui source: run against a pyautogui that records what it is asked to do."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo_verl.actions.pyautogui import duration_s, to_code
from arpo_verl.actions.reply import MAX_INPUT_S
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Point, Scroll, TypeText, Wait


class Recorder:
    """Stands for pyautogui, time and pyperclip."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs))


def run(code):
    recorder = Recorder()

    def only_pyperclip(name):
        assert name == "pyperclip"
        return recorder

    names = {"pyautogui": recorder, "time": recorder, "__builtins__": {"__import__": only_pyperclip}}
    exec(compile(code, "action", "exec"), names)  # our own output: what is under test
    return recorder.calls


def typed(calls):
    """The text that a US keyboard has typed after these calls."""
    text, clipboard = "", ""
    for name, args, _ in calls:
        if name == "write":
            text += args[0]
        elif name == "copy":
            clipboard = args[0]
        elif name == "press":
            assert args == ("enter",)
            text += "\n"
        elif name == "hotkey":
            text += {("shift", ","): "<", ("ctrl", "v"): clipboard}[args]
    return text


@pytest.mark.parametrize(
    ("action", "calls"),
    [
        (Click(Point(3, 4)), [("click", (), {"x": 3, "y": 4, "clicks": 1, "button": "left"})]),
        (Click(Point(3, 4), "right"), [("click", (), {"x": 3, "y": 4, "clicks": 1, "button": "right"})]),
        (Click(Point(3, 4), count=2), [("click", (), {"x": 3, "y": 4, "clicks": 2, "button": "left"})]),
        (Click(None, "middle", 3), [("click", (), {"clicks": 3, "button": "middle"})]),
        (Move(Point(3, 4)), [("moveTo", (), {"x": 3, "y": 4})]),
        (Drag(None, Point(3, 4)), [("dragTo", (), {"x": 3, "y": 4, "duration": 1.0, "button": "left"})]),
        (Scroll("down", notches=12), [("scroll", (-12,), {})]),
        (
            Drag(Point(1, 2), Point(3, 4)),
            [("moveTo", (), {"x": 1, "y": 2}), ("dragTo", (), {"x": 3, "y": 4, "duration": 1.0, "button": "left"})],
        ),
        (Hotkey(("ctrl", "c")), [("hotkey", ("ctrl", "c"), {})]),
        (Hotkey(("ctrl", "<")), [("hotkey", ("ctrl", "shift", ","), {})]),
        (Hotkey(("'",)), [("hotkey", ("'",), {})]),
        (Scroll("up", Point(1, 2)), [("scroll", (5,), {"x": 1, "y": 2})]),
        (Scroll("down"), [("scroll", (-5,), {})]),
        (Scroll("left"), [("hscroll", (-5,), {})]),
        (Scroll("right", Point(1, 2)), [("hscroll", (5,), {"x": 1, "y": 2})]),
        (Wait(), [("sleep", (5.0,), {})]),
        (TypeText("ab\n"), [("write", ("ab",), {}), ("press", ("enter",), {})]),
        (TypeText("a<b"), [("write", ("a",), {}), ("hotkey", ("shift", ","), {}), ("write", ("b",), {})]),
        (TypeText("é"), [("copy", ("é",), {}), ("hotkey", ("ctrl", "v"), {}), ("sleep", (0.5,), {})]),
    ],
)
def test_each_action_asks_pyautogui_for_the_right_thing(action, calls):
    assert run(to_code(action)) == calls


def test_what_ends_an_episode_has_no_code():
    for action in (Finish("x"), Fail()):
        with pytest.raises(TypeError, match="has no pyautogui code"):
            to_code(action)


@pytest.fixture(scope="module")
def rewrite():
    """The OSWorld client's own rewriting of commands, out of its source: importing the client takes seconds."""
    spec = importlib.util.find_spec("desktop_env")
    if spec is None:
        pytest.skip("desktop-env is not installed")
    source = Path(spec.origin).with_name("desktop_env.py").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(source).body if getattr(node, "name", "") == "_fix_pyautogui_less_than_bug"]
    names = {"re": re}
    exec(compile(ast.Module(functions, []), "desktop_env.py", "exec"), names)
    return names["_fix_pyautogui_less_than_bug"]


HOSTILE = [
    "'); import os; os.system('true') #",
    '"""\n"""',
    "\\",
    "\\'",
    "a\\nb",
    "${HOME} `id` %s {x}",
    "pyautogui.typewrite('<')",
    "pyautogui.press('<')",
    'pyautogui.typewrite("a<b")',
    "x') pyautogui.typewrite('\\u003c",
    "\\u003c \\x3c",
    "if (a < b) { return '\\t'; }",
    "naïve < déjà 'vu'",
    "日本語\n<b>",
    "é pyautogui.typewrite('<')",
    "\x00\x1b\x7f",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_typed_text_arrives_whole_through_the_clients_rewriting(text, rewrite):
    code = to_code(TypeText(text))
    assert rewrite(code) == code
    assert code.isascii()
    assert typed(run(rewrite(code))) == text


def test_the_clients_rewriting_does_touch_the_plain_form(rewrite):
    assert rewrite("pyautogui.typewrite('a<b')") != "pyautogui.typewrite('a<b')"


def test_each_end_of_a_line_is_one_enter():
    assert typed(run(to_code(TypeText("a\r\nb\rc\nd")))) == "a\nb\nc\nd"


@given(st.text(max_size=80) | st.text("pyautogui.typewrite('<\")\\u003c\n", max_size=80))
@settings(max_examples=300, deadline=None)
def test_any_text_is_data_and_never_code(text):
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    assert typed(run(to_code(TypeText(text)))) == expected


@pytest.mark.parametrize(
    ("action", "least_s", "most_s"),
    [
        (Click(Point(1, 2)), 0.1, 0.3),
        (TypeText("a" * 1000), 2, 2.3),
        (TypeText("\n" * 100), 10, 20),  # pyautogui rests after each Enter
        (TypeText("\u00e9\n" * 100), 80, 110),  # pasted line by line
        (TypeText("pyautogui." * 100), 2, 3),
    ],
)
def test_how_long_an_input_may_take(action, least_s, most_s):
    assert least_s < duration_s(to_code(action)) < most_s


def test_a_text_as_long_as_may_be_is_one_argument_of_a_process():
    longest = next(n for n in range(40_000, 0, -1) if duration_s(to_code(TypeText("a" * n))) <= MAX_INPUT_S)
    assert 25_000 < longest and len(to_code(TypeText("a" * longest))) < 30_000 < 128 * 1024
