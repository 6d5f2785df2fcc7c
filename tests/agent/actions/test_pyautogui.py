"""Typed actions as pyautogui source: run against a pyautogui that records what it is asked to do."""

from enum import StrEnum
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from fuzz_targets import check_code, clients_rewriting

from arpo_verl.agent.actions import typing
from arpo_verl.agent.actions.pyautogui import to_code
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Point, Scroll, TypeText, Wait


class Recorder:
    """Stands for pyautogui and time."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs))


def run(code):
    recorder = Recorder()
    names = {"pyautogui": recorder, "time": recorder, "__builtins__": {}}
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
        (Hotkey(("ctrl", "+")), [("hotkey", ("ctrl", "+"), {})]),
        (Hotkey(("ctrl", "<")), [down("ctrl"), down("shift"), down(","), up("shift"), up(","), up("ctrl")]),
        # Two names of one key.
        (Hotkey(("1", "!")), [down("1"), up("1"), down("shift"), down("1"), up("shift"), up("1")]),
        (Hotkey(("ctrl", "ctrlleft")), [down("ctrl"), up("ctrl"), down("ctrl"), up("ctrl")]),
        # pyautogui would release the Shift that is held, and so press a for A.
        (Hotkey(("shift", "!", "a")), [down("shift"), down("1"), down("a"), up("a"), up("1"), up("shift")]),
        (Hotkey(("'",)), [("hotkey", ("'",), {})]),
        (Scroll("up", Point(1, 2)), [("scroll", (5,), {"x": 1, "y": 2})]),
        (Scroll("down"), [("scroll", (-5,), {})]),
        (Scroll("left"), [("hscroll", (-5,), {})]),
        (Scroll("right", Point(1, 2)), [("hscroll", (5,), {"x": 1, "y": 2})]),
        (Wait(), [("sleep", (5.0,), {})]),
        (TypeText("a<b\r\né\r"), [("write", ("a<b\né\n",), {})]),
    ],
)
def test_each_action_asks_pyautogui_for_the_right_thing(action, calls):
    assert run(to_code(action)) == calls


class ButtonName(StrEnum):
    RIGHT = "right"


@pytest.mark.parametrize("text", [np.str_, lambda text: ButtonName.RIGHT if text == "right" else text])
def test_a_string_of_numpys_or_of_an_enumeration_is_written_as_text(text):
    """`np.str_('right')` was: the guest has no `np`, and clicked nowhere without a word."""
    for action in (Click(None, text("right")), Hotkey((text("ctrl"), text("right"))), TypeText(text("right"))):
        assert "right" in str(run(to_code(action)))


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


def test_a_part_of_a_long_text_is_one_argument_of_a_process_and_no_part_is_lost():
    text = "\U0001f600" * 5000 + "a\r\n" * 3000
    parts = typing.parts(text)
    assert "".join(parts) == text.replace("\r", "") and len(parts) == 6
    assert max(len(typing.by_x_keys(part)) for part in parts) < 30_000 < 128 * 1024  # Linux's MAX_ARG_STRLEN
    assert typing.parts("") == [""]


class Units:
    """Stands for Windows' `user32`: the UTF-16 units that it is sent as key events."""

    def __init__(self, takes=1.0):
        self.pressed, self.released, self.takes = [], [], takes

    def SendInput(self, count, events, size):
        assert size == 40  # sizeof(INPUT) where pointers have 8 bytes
        for event in events:
            assert (event.type, event.key.code) == (1, 0)
            {4: self.pressed, 6: self.released}[event.key.flags].append(event.key.unit)
        return int(count * self.takes)


def test_windows_types_what_pyautogui_does_not_know_by_utf_16(monkeypatch):
    recorder, units = Recorder(), Units()
    monkeypatch.setattr("ctypes.windll", SimpleNamespace(user32=units), raising=False)
    exec(typing.by_windows_keys("ab\né\U0001f600c"), {"pyautogui": recorder})
    assert recorder.calls == [("write", ("ab\n",), {}), ("write", ("c",), {})]
    assert units.pressed == units.released == [0xE9, 0xD83D, 0xDE00]
    units.takes = 0.5
    with pytest.raises(RuntimeError, match="Windows took 1 of 2 key events"):
        exec(typing.by_windows_keys("é"), {"pyautogui": recorder})
