"""Typed actions as pyautogui source: run against a pyautogui that records what it is asked to do."""

from importlib.util import find_spec

import pytest
from fuzz_targets import check_code, clients_rewriting

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


def down(key):
    return ("keyDown", (key,), {"_pause": False})


def up(key):
    return ("keyUp", (key,), {"_pause": False})


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
        (Hotkey(("tab", "tab")), [down("tab"), up("tab"), down("tab"), up("tab")]),
        (
            Hotkey(("alt", "tab", "tab")),
            [down("alt"), down("tab"), up("tab"), down("tab"), up("tab"), up("alt")],
        ),
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


HOSTILE = [  # any other text: `tests/test_hostile_text.py`
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
    "a\r\nb\rc\nd",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_typed_text_arrives_whole_through_the_clients_rewriting(text):
    check_code(TypeText(text))


def test_the_clients_rewriting_does_touch_the_plain_form():
    if find_spec("desktop_env") is None:
        pytest.skip("desktop-env is not installed")
    assert "typewrite('a<b')" not in clients_rewriting()("pyautogui.typewrite('a<b')")


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
