"""UI-TARS-1.5 text to typed actions and back."""

import re

import pytest

from arpo_verl.agent.actions.keys import parse_keys
from arpo_verl.agent.actions.reply import MAX_ACTIONS, MAX_REPLY_CHARS, Reply
from arpo_verl.agent.actions.ui_tars import format_reply, parse_reply
from arpo_verl.agent.models.family import load_family
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Point, Scroll, Size, TypeText, Wait

IMAGE, SCREEN = Size(364, 252), Size(640, 480)


def actions_of(text, image=IMAGE, screen=SCREEN):
    return parse_reply(text, image, screen).actions


# 640 / 364 = 1.7582 and 480 / 252 = 1.9048: (182, 126) is the middle of both.
@pytest.mark.parametrize(
    "position",
    [
        "'<|box_start|>(182,126)<|box_end|>'",
        "'(182,126)'",
        '"( 182 , 126 )"',
        "'(180,120,184,132)'",
        "'<point>182 126</point>'",
        "'[180,120,184,132]'",
        "'[182, 126]'",
        "'<bbox>180 120 184 132</bbox>'",
        "'\uff08182\uff0c126\uff09'",
        "'(182.0,126.0)'",
        "'(\u3000+182,\u00a0.126e3)'",
        "'(180., 120), (184,132)'",
    ],
)
@pytest.mark.parametrize("name", ["start_box", "point"])
def test_every_coordinate_form_scales_from_the_image_to_the_screen(position, name):
    assert actions_of(f"Thought: t\nAction: click({name}={position})") == (Click(Point(320, 240)),)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("click(start_box='(0,0)')", Click(Point(0, 0))),
        ("left_single(start_box='(0,0)')", Click(Point(0, 0))),
        ("left_double(start_box='(0,0)')", Click(Point(0, 0), count=2)),
        ("right_single(start_box='(0,0)')", Click(Point(0, 0), button="right")),
        ("drag(start_box='(0,0)', end_box='(182,126)')", Drag(Point(0, 0), Point(320, 240))),
        (
            "drag(start_point='<point>0 0</point>', end_point='<point>182 126</point>')",
            Drag(Point(0, 0), Point(320, 240)),
        ),
        ("hotkey(key='ctrl c')", Hotkey(("ctrl", "c"))),
        ("hotkey(hotkey='Return')", Hotkey(("enter",))),
        ("type(content='hello')", TypeText("hello")),
        ("scroll(start_box='(0,0)', direction='down')", Scroll("down", Point(0, 0))),
        ("scroll(direction='up')", Scroll("up")),
        ("wait()", Wait()),
        ("finished()", Finish()),
        ("call_user()", Fail()),
        ("error_env()", Fail()),
        ("hover(start_box='(0,0)')", Move(Point(0, 0))),
        ("select(start_box='(0,0)', end_box='(182,126)')", Drag(Point(0, 0), Point(320, 240))),
        # What the runner leaves aside: comments, arguments that an action has not, a comma behind the last.
        ("finished()   # done", Finish()),
        ("wait(5)", Wait()),
        ("click(start_box='(0,0)',)", Click(Point(0, 0))),
        ("computer.wait()", Wait()),
        ("type(content='it's', start_box='')", TypeText("it's")),
        ("drag(start_box='(0,0)',end_box='(0,0)')", Drag(Point(0, 0), Point(0, 0))),
        # Text that nothing types may go on, and any space may stand before an action and within its call.
        ("finished(content='one:\n- it's (1,2)\n\ntwo\n')", Finish("one:\n- it's (1,2)\n\ntwo\n")),
        ("type(\u3000content\u3000=\u3000'a b'\u3000)\u3000# c", TypeText("a b")),
        # Numbers from 0 to 1 are pixels where all are whole.
        ("click(start_box='(0.5,1.5)')", Click(Point(1, 3))),
        # The far edge of the image is the last pixel of the screen.
        ("click(point='(364,252)')", Click(Point(639, 479))),
    ],
)
def test_every_action_of_the_grammar_parses(call, action):
    assert actions_of(f"Action: {call}") == (action,)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (r"a\nb", "a\nb"),
        (r"it\'s", "it's"),
        ("it's", "it's"),
        (r"say \"hi\"", 'say "hi"'),
        ('say "hi"', 'say "hi"'),
        (r"back\\slash", "back\\slash"),
        (r"C:\dir", "C:\\dir"),
        (r"\\n", "\\n"),
        ("print('x')", "print('x')"),
        ("", ""),
        ("df.to_csv('x.csv', index=False)", "df.to_csv('x.csv', index=False)"),
        ("sorted('ab', key=len)", "sorted('ab', key=len)"),
        ("f('a', b='c') # note", "f('a', b='c') # note"),
        ("f('a') # not the end", "f('a') # not the end"),
        ("print('a'); type('b')", "print('a'); type('b')"),
        (r"abc\'); hotkey(key=\'enter", "abc'); hotkey(key='enter"),
        ("o.notify(); wait()", "o.notify(); wait()"),
        ("a, b=1)", "a, b=1)"),
        ("Action: click(", "Action: click("),
        ("__import__('os').system('true')", "__import__('os').system('true')"),
        ("f(a, b='c')", "f(a, b='c')"),
        ("f('a', b='c', d='e')", "f('a', b='c', d='e')"),
        (r"it\'s', b=\'c", "it's', b='c"),
    ],
)
def test_typed_text_is_taken_literally_but_for_the_documented_escapes(content, text):
    assert actions_of(f"Action: type(content='{content}')") == (TypeText(text),)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        (
            "Thought: both\nAction: click(point='(0,0)')\n\ntype(content='a') # a comment\nwait()",
            Reply("both", (Click(Point(0, 0)), TypeText("a"), Wait())),
        ),
        ("Thought: one\ntwo\nAction: wait()", Reply("one\ntwo", (Wait(),))),
        ("no label Action: wait()", Reply("no label", (Wait(),))),
        # Of two thoughts or actions the last counts.
        ("Thought: a\nAction: hotkey(key='a')\nThought: b\nAction: wait()", Reply("b", (Wait(),))),
        ("Thought: a\nAction: hotkey(key='a')\n\nAction: wait()", Reply("a", (Wait(),))),
        ("Thought: a\nAction: hotkey(key='a')\nThought: b Action: wait()", Reply("b", (Wait(),))),
        # A label amid a line, where no line starts with one.
        ("Thought: after Action: comes one. Action:wait()", Reply("after Action: comes one.", (Wait(),))),
        # Doubao's full-width colon, and lines that end as on Windows.
        ("Thought\uff1aa\nAction\uff1a wait()", Reply("a", (Wait(),))),
        ("Thought: a\r\nb\r\nAction: wait()\r\n\r\nwait()", Reply("a\nb", (Wait(), Wait()))),
    ],
)
def test_a_thought_stands_before_the_action_and_each_action_on_a_line_of_its_own(text, reply):
    assert parse_reply(text, IMAGE, SCREEN) == reply


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must have 'Action:'"),
        ("Action:", "got nothing"),
        ("Action: fly()", "unknown action 'fly'; known: call_user, click"),
        ("Action: click(start_box='(0,0)', x='5', y='6')", "click takes start_box, point, start_point, not x, y: it"),
        ("Action: click(start_box='(0,0)', side='left')", "not side"),
        ("Action: click(start_box='(0,0)', point='(1,1)')", "one of start_box, point, start_point, got different"),
        ("Action: scroll(direction='down', amount='a lot')", "not amount"),
        ("Action: scroll(direction='down 3')", "direction must be one of up, down, left, right, got 'down 3'"),
        ("Action: scroll(direction='down and up')", "direction must be one of up, down, left, right, got 'down and up"),
        ("Action: click(start_box='(0,0)', num_clicks='two')", "not num_clicks"),
        ("Action: click(start_box='(0,0)', often='2 times')", "not often"),
        ("Action: click(start_box='(0,0)', how='Right-click')", "not how"),
        ("Action: click(start_box='(0,0)', with='ctrl')", "not with"),
        ("Action: hotkey(key='down', repeat='three')", "not repeat"),
        ("Action: hotkey(key='enter', content='hello')", "hotkey takes key, hotkey, not content"),
        # These were typed too.
        ("Action: type(content='abc', submit='yes')", "type takes content, not submit"),
        ("Action: type(content='abc', press_enter=\"True\")", "type takes content, not press_enter"),
        ("Action: hotkey(key='a', presses=3)", "not presses"),
        ("Action: click()", "click must have start_box or point"),
        ("Action: click(start_box='(0,-1)')", "y must be within the image, 0 to 252 pixels, got -1"),
        ("Action: click(start_box='(0,0,400,0)')", "x must be within the image"),
        ("Action: click(start_box='(1,2,3)')", "a position must be"),
        ("Action: click(start_box='(1e3,2)')", "x must be within the image, 0 to 364 pixels, got 1000"),
        # Its own syntax, which OSWorld's runner types.
        ("Action: type(content='abc'); hotkey(key='enter')", 'a new line must follow an action, got "; hotkey'),
        ("Action: type(content='abc') wait()", "a new line must follow an action, got 'wait()'"),
        ("Action: type(content='abc), hotkey(key='enter')", "a string must not run over the next call, got"),
        ("Action: type(content='abc') Action: click(start_box='(1,2)')", "a string must not run over the next call"),
        ("Action: type(content='abc') && hotkey(key='enter')", "a string must not run over the next call"),
        (r"Action: type(content='abc')\n\nAction: hotkey(key='enter')", "a string must not run over the next call"),
        ("Action: type(content='abc'), pyautogui.hotkey(key='enter')", "a string must not run over the next call"),
        ("Action: type(content='abc)\n\nhotkey(key='enter')", "a string must end on its line"),
        ("Action: type(content='two\nlines')", "a string must end on its line"),
        ("Action: type(content='two\\\nlines')", "a string must end on its line"),
        ("Action: type(content='a\x07')", "must be characters that a keyboard can type, got '\\x07'"),
        ("Action: type(content='\ud800')", "must be characters that a keyboard can type, got '\\ud800'"),
        ("Action: click(start_box=(1,2))", "a value must be quoted"),
        ("Action: click(start_box='(1,2)'", "a string must end"),
        ("Action: click[start_box='(1,2)']", 'a call, such as wait(), got "click[start_box'),
        ("Action: click(start_box='(1,2)') and I wait.", "a new line must follow an action, got ' and I wait.'"),
        ("Action: finished(content='one)\n\nhotkey(key='a')", "a string must not run over the next call"),
        ("Action: finished(content='one\nhotkey(key='a')", "a string must not run over the next call"),
        ("Action: hotkey(key='entr')", "did you mean enter?"),
        ("Action: hotkey(key=' ')", "at least one key"),
        *((f"Action: hotkey(key='{keys}')", "must name keys") for keys in ("C-x", "S-Tab", "M-x C-s", "^c", "x-c")),
        *((f"Action: hotkey(key='ctrl {sign} c')", "join its keys by a space or +, got 'ctrl") for sign in "&,-|/"),
        ("Action: click(" + "1, " * 20 + ")", "at most 16 arguments"),
        ("Action: hotkey(key='" + "a " * 501 + "')", "keys in at most 1000 characters, got 1002"),
        ("Action: " + "\n\n".join(["wait()"] * (MAX_ACTIONS + 1)), "at most 8 actions"),
        ("a" * (MAX_REPLY_CHARS + 1), "at most 40000 characters"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_the_reason(text, reason):
    with pytest.raises(ActionParseError) as caught:
        load_family("ui_tars_15").read(text, IMAGE, SCREEN)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ctrl c", ("ctrl", "c")),
        ("Ctrl+Shift+T", ("ctrl", "shift", "t")),
        ("control-alt-delete", ("ctrl", "alt", "delete")),
        ("a+b", ("a", "b")),
        ("cmd", ("win",)),
        ("ctrl--", ("ctrl", "-")),
        ("ctrl + +", ("ctrl", "+")),
        ("+ a", ("+", "a")),
        ("ctrl - -", ("ctrl", "-", "-")),
        ("page down", ("pagedown",)),
        ("num lock", ("numlock",)),
        ("shift f 10", ("shift", "f10")),
        ("alt left", ("alt", "left")),
        ("Alt_Left", ("altleft",)),
        ("Control_L", ("ctrlleft",)),
        ("Super_L", ("winleft",)),
        ("rctrl", ("ctrlright",)),
        ("KP_Enter", ("enter",)),
        ("KP_7", ("num7",)),
        ("slash", ("/",)),
        ("ctrl+bracketright", ("ctrl", "]")),
        ("underscore", ("_",)),
        ("page-up", ("pageup",)),
        ("Escape", ("esc",)),
        ("F12", ("f12",)),
        ("<", ("<",)),
    ],
)
def test_key_names_are_normalised(text, keys):
    assert parse_keys(text) == keys


def test_what_the_grammar_lacks_cannot_be_written():
    with pytest.raises(ActionParseError, match="no click of 1 with the middle button"):
        format_reply(Reply("", (Click(Point(0, 0), "middle"),)), IMAGE, SCREEN)
    for action in (Click(None), Drag(None, Point(0, 0)), Scroll("up", notches=3)):
        with pytest.raises(ActionParseError, match="UI-TARS has no action"):
            format_reply(Reply("", (action,)), IMAGE, SCREEN)
    for thought in ("x\nAction: y", "Thought: x", "x\nThought: y"):
        with pytest.raises(ActionParseError, match=f"must not hold.*got {re.escape(repr(thought))}"):
            format_reply(Reply(thought, (Wait(),)), IMAGE, SCREEN)


def test_the_canonical_form_is_that_of_the_prompt():
    reply = Reply("I click.", (Click(Point(320, 240)), TypeText("a'b\n")))
    expected = (
        "Thought: I click.\nAction: click(start_box='<|box_start|>(182,126)<|box_end|>')\n\ntype(content='a\\'b\\n')"
    )
    assert format_reply(reply, IMAGE, SCREEN) == expected
    assert format_reply(Reply("", (Finish(),)), IMAGE, SCREEN) == "Action: finished()"
    typed = format_reply(Reply("", (TypeText('\\ \t \r "'),)), IMAGE, SCREEN)
    assert typed == "Action: type(content='\\\\ \\t \\r \"')"
