"""OpenCUA's grammar: calls of pyautogui that are read and never run."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo_verl.actions.opencua import format_reply, parse_reply, said_action
from arpo_verl.actions.reply import Reply
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Point, Scroll, Size, TypeText, Wait

IMAGE, SCREEN = Size(1932, 1092), Size(1920, 1080)


def reply_of(code):
    return parse_reply(f"## Thought:\nHm.\n\n## Action:\nI do it.\n\n## Code:\n```python\n{code}\n```", IMAGE, SCREEN)


@pytest.mark.parametrize(
    ("code", "actions"),
    [
        ("pyautogui.click(x=966, y=546)", (Click(Point(960, 540)),)),
        ("pyautogui.click(0.5, 0.5, button='right', clicks=2)", (Click(Point(960, 540), "right", 2),)),
        ("pyautogui.tripleClick()", (Click(None, "left", 3),)),
        ("pyautogui.moveTo(0, 0)\npyautogui.dragTo(966, 546, 0.5, 'left')", (Drag(Point(0, 0), Point(960, 540)),)),
        ("pyautogui.dragTo(x=966, y=546)", (Drag(None, Point(960, 540)),)),
        ("import pyautogui\npyautogui.hotkey(['ctrl', 'c'], interval=0.1)", (Hotkey(("ctrl", "c")),)),
        ("pyautogui.press('Return', presses=3)", (Hotkey(("enter",) * 3),)),
        ("pyautogui.press(['a', 'a', ' '])", (Hotkey(("a", "a")), Hotkey(("space",)))),
        ("pyautogui.write(['a', 'enter'])", (Hotkey(("a",)), Hotkey(("enter",)))),
        (r"pyautogui.write('it\'s \d # no comment')  # it's one", (TypeText("it's \\d # no comment"),)),
        (r"pyautogui.write(r'C:\new', interval=0.05)", (TypeText("C:\\new"),)),
        ('pyautogui.write("""a\nb""")', (TypeText("a\nb"),)),
        ("pyautogui.hscroll(-500, x=966, y=546)", (Scroll("left", Point(960, 540), 100),)),
        ("computer.wait(20)", (Wait(),)),
        ("computer.terminate(status='success', answer='''42''')", (Finish("42"),)),
        ("computer.terminate('failure')", (Fail(),)),
    ],
)
def test_what_its_code_may_call(code, actions):
    with warnings.catch_warnings(action="error"):
        assert reply_of(code) == Reply("Hm.", actions)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("__import__('os').system('true')", "must contain only calls of pyautogui, got Expr"),
        ("os.system('true')", "unknown action 'os.system'"),
        ("pyautogui.press(open('x').read())", "must be a number, a text or a list of keys, got Call"),
        ("pyautogui.mouseDown()", "unknown action 'mouseDown' (no button stays down)"),
        ("while True: pass", "must contain only calls of pyautogui, got While"),
        ("pyautogui.write(f'{1}')", "a text must stand in plain quotes"),
        ("pyautogui.write('a' * 9)", "got BinOp"),
        ("pyautogui.write('a", "the code must be Python: 'unterminated string"),
        ("pyautogui.press('\0')", "null bytes"),
        ("pyautogui.press('\ud800')", "Python of sensible size"),
        ("pyautogui.click(1, 2); " * 60, "at most 1000 characters beside its texts"),
        ("a" + "()" * 480, "must contain only calls of pyautogui"),
        ("pyautogui.press('a')\n" * 9, "at most 8 actions"),
        ("pyautogui.click(x=0x" + "f" * 900 + ", y=1)", "x must be a number from -1e+06 to 1e+06"),
        ("pyautogui.click(x=5)", "must have x and y, got one"),
        ("pyautogui.click(x=5, y=5000)", "must be within the image"),
        ("pyautogui.click('button.png')", "x must be a number from -1e+06 to 1e+06, got the text 'button.png'"),
        ("pyautogui.click(x=[1, 2], y=3)", "x must be a number from -1e+06 to 1e+06, got [1, 2]"),
        ("pyautogui.click(5, 5, modifier='left')", "click takes x, y, clicks, button, not modifier"),
        ("pyautogui.click(clicks=9)", "clicks must be a number from 1 to 3"),
        ("pyautogui.press('a', presses=1e9)", "presses must be a number from 1 to 100"),
        ("pyautogui.press('bananna')", "must name keys"),
        ("pyautogui.scroll()", "must have clicks other than 0"),
        ("pyautogui.dragTo(1, 2, button='right')", "must be with the left button"),
        ("computer.terminate()", "status must be success or failure, got None"),
        ("import os", "must have a call, got none"),
    ],
)
def test_what_it_may_not_is_refused(code, reason):
    with pytest.raises(ActionParseError) as caught:
        reply_of(code)
    assert reason in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text", ["", "## Action:\nx", "```pyautogui.press('a')```", "## Action:\n\n## Code:\n```computer.wait()```"]
)
def test_a_reply_without_code_or_without_what_it_does_is_refused(text):
    with pytest.raises(ActionParseError, match="must have its action as code within|must say what it does"):
        parse_reply(text, IMAGE, SCREEN)


def test_what_a_reply_says_that_it_does():
    assert said_action("# Step 1:\r\n## Action:\r\nClick it.\r\n\r\n## Code:\r\n") == "Click it."
    assert said_action("## Action: Click it.") is None is said_action("## Action:\n\n## Code:")


points = st.builds(Point, st.integers(0, SCREEN.width - 1), st.integers(0, SCREEN.height - 1))
actions = st.one_of(
    st.builds(Click, st.none() | points, st.sampled_from(["left", "right", "middle"]), st.integers(1, 3)),
    st.builds(Drag, points, points),
    st.builds(Move, points),
    st.builds(Scroll, st.sampled_from(["up", "down", "left", "right"]), st.none() | points, st.integers(1, 100)),
    st.builds(TypeText, st.text("abc \n\t\"'\\{}#é中", min_size=1)),
    st.builds(Finish, st.text("ab'\"\\#", max_size=4)),
    st.sampled_from([Hotkey(("ctrl", "c")), Hotkey(("a", "a")), Hotkey(("alt", "tab", "tab")), Hotkey(("+",))]),
    st.sampled_from([Wait(), Fail()]),
)


@given(st.lists(actions, min_size=1, max_size=4), st.sampled_from(["", "I click.", "1 < 2\n# no heading"]))
def test_what_is_written_is_read_again(written, thought):
    reply = Reply(thought, tuple(written))
    assert parse_reply(format_reply(reply, IMAGE, SCREEN), IMAGE, SCREEN) == reply


@pytest.mark.parametrize("thought", ["## Action:", "a ``` b"])
def test_a_thought_with_its_own_marks_is_not_written(thought):
    with pytest.raises(ActionParseError, match="own marks"):
        format_reply(Reply(thought, (Wait(),)), IMAGE, SCREEN)
