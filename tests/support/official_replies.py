"""Replies of every kind that we have seen or can think of.

Written by a small grammar over fixed lists and a seeded generator: the same replies at every run. A kind is one way to
write a reply; of one kind the parsers agree on every reply or on none.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import NamedTuple


class Case(NamedTuple):
    """One reply."""

    kind: str
    text: str


THOUGHTS = (
    "I open the menu.",
    'The file\'s name is "a b"; I click (10, 20).',
    "First, I look.\nThen I click on 'Save as...'.",
    "# Plan\n1. Open {the} menu\n2. Done: 100%",
    "\u6211\u70b9\u51fb\u4fdd\u5b58\u6309\u94ae\u3002",
    "Action is needed: the button lies at (443,320).",
)
WORDS = (
    "hello",
    "Hello, World!",
    "a@b.org",
    "ls -la | grep x",
    "https://example.org/?q=1&r=2",
    "=SUM(A1:B2)",
    "50%",
    "x < y",
)
SPACES = ("\u00a0", "\u3000", "\u2003", "\u202f", "\u2028", "\x85", "\x0b", "\t")
FRACTIONS = ((0.52, 0.31), (0.5, 1), (0.001, 0.999), (0, 0.25))
KEY_NOTATIONS = "C-x;M-x;S-Tab;^c;ctrl & c;ctrl , c;ctrl - c;ctrl | c;<ctrl>c;ctrl c & ctrl v".split(";")
BEHIND = " and then I wait.~.~;~</s>~<|im_end|>~\n```~\nObservation: ok~\u3002~\n\nThought: x~ |".split("~")

# --- UI-TARS ------------------------------------------------------------------------------------------------------


def ui_tars_cases() -> Iterator[Case]:
    """Whole replies."""
    rng = random.Random(12)
    for number, (kind, action) in enumerate(_ui_tars_actions(rng)):
        # Every third without a thought, as the prompt without thoughts asks for.
        thought = "" if number % 3 == 0 else f"Thought: {THOUGHTS[number % len(THOUGHTS)]}\n"
        yield Case(kind, f"{thought}Action: {action}")
    call = "hotkey(key='ctrl c')"
    for thought in THOUGHTS:
        yield Case(
            "two thoughts", f"Thought: {thought}\nAction: click(start_box='(1,2)')\nThought: No.\nAction: {call}"
        )
        yield Case("two labels", f"Thought: {thought}\nAction: wait()\n\nAction: {call}")
        yield Case("a label amid a line", f"Thought: {thought} Action: {call}")
        for label in ("Thought\uff1a", "Thought: "):
            yield Case("Doubao's forms", f"{label}{thought}\nAction\uff1a {call}")
        yield Case("no thought's label", f"{thought}\nAction: {call}")
        yield Case("space around", f"\n Thought: {thought}\n\nAction:  {call}\n\n")
        yield Case("a call on the line below its label", f"Thought: {thought}\n\nAction:\n{call}")
        yield Case("no action", f"Thought: {thought}")
        yield Case("no action", f"Thought: {thought}\nAction:")
        yield Case("a thought with three quotes", f"Thought: '''{thought}'''\nAction: {call}")
    yield from (Case(*case) for case in _ui_tars_reports(call))
    yield Case("a summary", f"Reflection: It worked.\nAction_Summary: I copy.\nAction: {call}")
    yield Case("a summary", f"Action_Summary: I copy.\nAction: {call}")
    for text in ("", "   ", "I cannot help.", "Thought: x\nAct: wait()", "wait()"):
        yield Case("no action", text)


_UI_TARS_REPORTS = (
    r"signs in an answer~finished(content='it\'s')~finished(content='say \"hi\"')~finished(content='one\ntwo')",
    "signs in an answer~finished(content='(a), b=c')~finished(content=')')~finished(content='\u201ca\u201d # no\t')",
    "a position or keys over two lines~click(start_box='(30,\n40)')~hotkey(key='ctrl\nc')~hotkey(key='enter\n')",
    "a label twice~Action: CALL~I copy. Action: CALL~\n\nI copy it. Action: CALL~wait Action: CALL~... \nAction: CALL",
    "a second label behind a call~CLICK Action: CALL~wait() Action: CALL~type(content='abc') Action: CALL",
    "marks around a call~`CALL`~```\nCALL\n```~```python\nCALL\n```~**CALL**~- CALL~1. CALL~[CALL]~I CALL~<CALL>",
    "not in the grammar~click(start_box=\u2018(30,40)\u2019)~click(start_box=`(30,40)`)~click(start_box: '(30,40)')",
    "not in the grammar~click('(30,40)')~click\uff08start_box='(30,40)'\uff09~Click(start_box='(30,40)')~done()",
    "not in the grammar~hotkey(key=['ctrl', 'c'])~click(box='(30,40)')~click(start_box='(30\u300140)')~click(30, 40)",
    "typed text in other quotes~type(content=\u2018abc\u2019)~type(content=`abc`)",
    "Python beyond a plain call~wait(None)~finished(True)~finished(*a)~(CLICK)~finished(content=r'a')~wait(f(1))",
    "lines that end as on Windows~CLICK\r\n~CALL\r\n\r\n~\twait()\r\n",
    "Windows lines within the action~CLICK\r\n\r\nCALL~\r\nCLICK~finished(content='one\r\ntwo')",
    "a position near the corner~click(start_box='(0,0)')~hover(start_box='(0,1)')~click(start_box='(1.0,0.0)')",
    "a position near the corner~click(start_box='(0,0,1,1)')~click(start_box='(0.5,0.5,40,60)')",
)


def _ui_tars_reports(call: str) -> Iterator[tuple[str, str]]:
    """As public reports of errors have them."""
    click, say = "click(start_box='(30,40)')", "Thought: I look (1,2).\nAction: "
    for kind, *forms in (row.split("~") for row in _UI_TARS_REPORTS):
        yield from ((kind, say + form.replace("CALL", call).replace("CLICK", click)) for form in forms)
    for answer in ("one\ntwo", "1. x=(1,2)\n2. b\n", 'a "b"\nc', "It is done:\n- wait() first\n\t- then"):
        for head in ("finished(content=", "finished(", "error_env(content=", "wait(why=", "finished(content='a', b="):
            yield "an end over several lines", f"{say}{head}'{answer}')"
            yield "an end over several lines", f"{say}{head}'{answer}',) # it's done"
        yield "call_user", f"{say}call_user(content='{answer}')"
        yield "an empty line in an answer", f"{say}finished(content='{answer}\n\nThat is all.')"
    for space in SPACES:
        for one in (click, call, "wait()"):
            yield "any space around an action", f"{say}{space}{one}"
            yield "any space around an action", f"{space}{say}{one}{space}"
            yield "any space around an action", f"Thought:{space}x\n{space}Action:{space}{space}{one}"
            if space != "\t":
                yield "any space within a call", f"{say}{one.replace('(', space + '(', 1)}"
                yield "any space within a call", f"{say}{one[:-1]}{space})"
        yield "any space in a position", f"{say}click(start_box='({space}30,{space}40{space})')"
    for numbers in "(+30,40) (30.,40.) (3e1,40) ((30,40)) (30,40),(50,60) 30.123456789,40 (.3e2,040)".split():
        yield "forms of a box", f"{say}click(start_box='{numbers}')"
        yield "forms of a box", f"{say}drag(start_box='(1,2)', end_box='{numbers}')"
    for x, y in FRACTIONS:
        yield "a position in fractions", f"{say}click(start_box='({x},{y})')"
        yield "a position in fractions", f"{say}hover(start_box='({x}, {y}, {x}, 0.9)')"
        yield "a position in fractions", f"{say}drag(start_box='(30,40)', end_box='({x},{y})')"
        yield "a position in fractions", f"{say}scroll(start_box='({x},{y})', direction='up')"
    for keys in KEY_NOTATIONS:
        yield "another notation of keys", f"{say}hotkey(key='{keys}')"
    for behind, one in itertools.product(BEHIND, (click, call, "wait()", "finished(content='x')")):
        yield "text behind a call", f"{say}{one}{behind}"


def _ui_tars_actions(rng: random.Random) -> Iterator[tuple[str, str]]:
    def box() -> str:
        return f"({rng.randint(0, 644)},{rng.randint(0, 476)})"

    pointed = ("click", "left_single", "left_double", "right_single", "hover")
    for _ in range(8):
        for name in pointed:
            yield "a click", f"{name}(start_box='{box()}')"
        for name in ("drag", "select"):
            yield "a drag", f"{name}(start_box='{box()}', end_box='{box()}')"
        for direction in ("up", "down"):
            yield "a scroll", f"scroll(start_box='{box()}', direction='{direction}')"
    for form in ("(10,20,30,40)", "( 10 , 20 )", "(10.5,20.25)", "10,20", "10, 20, 30, 40", "(10, 20"):
        for name in pointed:
            yield "forms of a box", f"{name}(start_box='{form}')"
            yield "forms of a box", f'{name}(start_box="{form}")'
    for direction in ("left", "right"):
        yield "scroll left or right", f"scroll(start_box='{box()}', direction='{direction}')"
    calls = ("click(start_box='(30,40)')", "hotkey(key='ctrl a')", "type(content='abc')", "scroll(direction='down')")
    for first, second in itertools.permutations(calls, 2):
        yield "several actions", f"{first}\n\n{second}"
        yield "actions on lines without a blank one between", f"{first}\n{second}"
        yield "an action before an end", f"{first}\n\nfinished(content='x')"
        yield "an action before an end", f"{first}\n\nwait()"
    yield "more than 8 actions", "\n\n".join(["hotkey(key='a')"] * 9)
    for number in range(4):
        yield "a point outside of the image", f"click(start_box='({645 + number * 300},20)')"
        yield "a point outside of the image", f"left_double(start_box='(20,{477 + number * 300})')"
    for kind, call, *values in (row.split("~") for row in (*_UI_TARS_FORMS, *_UI_TARS_TEXTS)):
        yield from ((kind, call.replace("@", value)) for value in values)
    yield "a comma behind the last", "click(start_box='(1,2)', colour='red', )"
    yield "control characters", "type(content='a\x07b')"
    yield "control characters", "type(content='a\x1bb')"
    yield "typed text", f"type(content='{chr(0x1F600) * 20_000}')"
    yield "a reply of more than 40,000 characters", f"type(content='{'a' * 40_000}')"


# Each with the call, and what stands in it for the sign @.
_UI_TARS_FORMS = (
    *(f"a scroll~scroll({box}direction='@')~up~down~Up~DOWN~scroll down~page up" for box in ("", "start_box='', ")),
    "scroll left or right~scroll(direction='@')~left~right",
    *(
        f"a hotkey~hotkey({key})~enter~ctrl c~ctrl shift t~alt f4~space~arrowleft~arrowdown~a~f5~ctrl -~esc~win"
        for key in ("key='@'", 'hotkey="@"')
    ),
    "keys joined by a sign, in capitals or by another name~hotkey(key='@')~ctrl+c~Ctrl C~command s~ctrl--~ctrl + c"
    "~page down~Control_L a~Super_L~KP_Enter~slash~Return~cmd",
    "keys that do not exist~hotkey(key='@')~volumeup~ctrl bananna~ctrl-~fn f5",
    "a key several times~hotkey(key='@')~down down down~tab tab~alt tab tab~ctrl z z~ctrl c ctrl v",
    "keydown, keyup~@(key='shift')~keydown~keyup",
    *(f"an end~@{end}~wait()~finished()~finished(content='done')~error_env()" for end in ("", "\n")),
    *(
        f"a comment~@{comment}~wait()~finished()~finished(content='done')~error_env()"
        for comment in (" #Sleep for 5s and take a screenshot to check for any changes.", "# it's done")
    ),
    "a comment~@ # the button~click(start_box='(1,2)')~hotkey(key='a')~scroll(direction='up')",
    "a comma behind the last~@,)~click(start_box='(1,2)'~hotkey(key='a'~scroll(direction='up'",
    "a comma behind the last~@,)~wait(time='5'~wait(5~finished('done'",
    "a name with a dot~pyautogui.@~click(start_box='(1,2)')~hotkey(key='a')~scroll(direction='up')",
    "call_user~call_user(@)~~content='I cannot'",
    "arguments that it has not~@)~wait(time='5'~wait(5~finished('done'~click(start_box='(1,2)', colour='red'",
    "a number without quotes~wait(@)~time=5~seconds=2.5",
    *(
        f"a position by another name or form~{name}(@)~point='<point>10 20</point>'~point='(10,20)'"
        "~start_box='<|box_start|>(10,20)<|box_end|>'~start_point='(10,20)'"
        for name in ("click", "right_single")
    ),
    "not in the grammar~@~dance(x='1')~press(key='a')~dance(~wait~wait[]~click()~click(start_box='(a,b)')~...~scroll()"
    "~click(start_box='(1,2,3)')~click(start_box=(1,2))~wait() wait()~wait(); wait()~click(start_box='')~hotkey()"
    "~scroll(direction='sideways')~drag(start_box='(1,2)')~hotkey(key='')~type('abc')~type()",
    "a position, direction, amount or switch that the action does not read~@)~click(start_box='(1,2)', clicks='2'"
    "~click(start_box='(1,2)', end_box='(30,40)'~click(start_box='(1,2)', x='30', y='40'"
    "~left_double(start_box='(1,2)', point='(30,40)'~hover(start_box='(1,2)', direction='down'"
    "~drag(start_box='(1,2)', end_box='(30,40)', end_point='(50,60)'~hotkey(key='a', presses='3'"
    "~scroll(start_box='(1,2)', direction='down', distance='500'~hotkey(key='ctrl c', start_box='(1,2)'"
    "~type(content='hello', start_box='(1,2)'",
    *(
        f"Doubao's forms~{name}(start_box='@')~[10,20,30,40]~[10, 20]~<bbox>10 20 30 40</bbox>"
        "~<bbox>10,20,30,40</bbox>~(10\uff0c20)"
        for name in ("click", "left_single", "left_double", "right_single", "hover")
    ),
    "an argument twice~click(@)~start_box='(1,2)', start_box='(30,40)'",
    "an apostrophe in an answer~finished(content='@')~it's done~it's:\n- 'done'",
)
_CODE = ("df.to_csv('x.csv', index=False)", "print('a')", "f('a', b=1)", "it's", "say 'hi' now", "o.f(); wait()")
_TYPED = (*WORDS, *_CODE, "\u00e9\u4e2d\u6587", 'say "hi"', "a, b=1)", "Action", "# heading")
_UI_TARS_TEXTS = (
    *(f"typed text~type(content='@')~{text}" for text in ("", *_TYPED, r"it\'s", r"say \"hi\"")),
    *(rf"typed text~type(content='@\n')~{text}" for text in _TYPED if "')" not in text),
    "a string over its line~type(content='@')~ls\n",
    r"a quote and a bracket within typed text~type(content='@')~print('a')\n~f('a') # x'~f('a') and more",
    r"Enter alone~type(content='@')~\n",
    "space in front of typed text~type(content='@')~  hello",
    r"a newline amid typed text~type(content='@')~a\nb~one\ntwo\n~\n\nx",
    r"a backslash in typed text~type(content='@')~C:\\temp~run\\n~a\\b",
    *(
        f"{kind}~type(content={end}~" + "~".join(WORDS[:5])
        for kind, end in (
            ("typed text in double quotes", '"@")'),
            ("typed text with something behind it", "'@') # and go"),
            ("typed text with something behind it", "'@',)"),
            ("typed text with something behind it", "'@', start_box='')"),
            ("a string over a following call", "'@'); hotkey(key='enter')"),
            ("a string over a following call", "'@') hotkey(key='enter')"),
            ("a string over a following call", "'@), hotkey(key='enter')"),
            ("a string over its line", "'@\nand more')"),
        )
    ),
)


# --- Qwen -----------------------------------------------------------------------------------------------------------


def tool_json(**arguments: object) -> str:
    """One call's JSON."""
    return json.dumps({"name": "computer_use", "arguments": arguments}, ensure_ascii=False)


def tagged(call: str) -> str:
    """In its tags, each on a line of its own."""
    return f"<tool_call>\n{call}\n</tool_call>"


def qwen_cases(kind: str) -> Iterator[Case]:
    """Whole replies to the prompt `kind`."""
    is_qwen3 = kind == "qwen3_vl"
    rng = random.Random(25)
    say = "Action: I do it.\n"

    def place() -> list[int]:
        return [rng.randint(0, 990 if is_qwen3 else 639), rng.randint(0, 990 if is_qwen3 else 479)]

    clicks = ("left_click", "right_click", "middle_click", "double_click")
    for number in range(6):
        for name in (*clicks, "mouse_move", "left_click_drag"):
            call = tool_json(action=name, coordinate=place())
            yield Case("a pointer's action", (f"{THOUGHTS[number]}\n" if number % 3 else say) + tagged(call))
    for name in clicks:
        yield Case("a pointer's action", say + tagged(tool_json(action=name)))
        yield Case("a pointer's action", say + tagged(tool_json(action=name, coordinate=[10.5, 20.5])))
        extra = {"text": "", "keys": [], "pixels": 0, "time": "2", "status": "success", "element": "the red button"}
        yield Case("arguments that it has not", say + tagged(tool_json(action=name, coordinate=place(), **extra)))
        one_argument_twice = tool_json(action=name, coordinate=[1, 2])[:-2] + ', "coordinate": [30, 40]}}'
        yield Case("an argument twice", say + tagged(one_argument_twice))
        yield Case("a coordinate that is null", say + tagged(tool_json(action=name, coordinate=None)))
        for outside in ([1001 if is_qwen3 else 641, 5], [5, -3]):
            yield Case("a coordinate outside", say + tagged(tool_json(action=name, coordinate=outside)))
    for name in ("mouse_move", "left_click_drag"):
        yield Case("no coordinate to move or drag to", say + tagged(tool_json(action=name)))
    for arguments in _unread_arguments():
        kind_of_case = "a position, direction, amount or switch that the action does not read"
        yield Case(kind_of_case, say + tagged(tool_json(**arguments)))
    for pixels, direction in ((5, "up"), (-5, "Down"), (-2, "down"), (3, "UP")):
        yield Case("the same said twice", say + tagged(tool_json(action="scroll", pixels=pixels, direction=direction)))
    for name, button in (("left_click", "left"), ("right_click", "right"), ("double_click", "left")):
        yield Case("the same said twice", say + tagged(tool_json(action=name, coordinate=place(), button=button)))
    for keys in (["down", "down", "down"], ["tab", "tab"], ["alt", "tab", "tab"], ["ctrl", "z", "z"]):
        yield Case("a key several times", say + tagged(tool_json(action="key", keys=keys)))
    for pixels in (5, -5, 1, -100, "-3", "5"):
        yield Case("a scroll", say + tagged(tool_json(action="scroll", pixels=pixels)))
        yield Case("scroll at a point", say + tagged(tool_json(action="scroll", pixels=pixels, coordinate=[9, 9])))
    yield Case("scroll by more than 100 notches", say + tagged(tool_json(action="scroll", pixels=-1000)))
    for pixels in (0.4, -3.4):
        yield Case("scroll by a fraction", say + tagged(tool_json(action="scroll", pixels=pixels)))
    for text in (*WORDS, "", "\u00e9\u4e2d\u6587", "a, b)", "</tool_call>", 5, 2.5):
        yield Case("typed text", say + tagged(tool_json(action="type", text=text)))
    for text in ("it's", "a\nb", "x\n", "C:\\temp", "'); import os; ('"):
        yield Case("quotes, newlines and backslashes in typed text", say + tagged(tool_json(action="type", text=text)))
    broken_line = tool_json(action="type", text="a b").replace("a b", "a\nb")
    yield Case("a newline within a JSON string", say + tagged(broken_line))
    yield Case("control characters in a call", say + tagged(tool_json(action="type", text="a\x07")))
    for keys in (
        ["enter"],
        ["ctrl", "c"],
        ["ctrl", "shift", "t"],
        ["f5"],
        ["a"],
        [" "],
        ["ctrl]"],
        ["keys=[ctrl", "c"],
    ):
        yield Case("keys", say + tagged(tool_json(action="key", keys=keys)))
    for keys in (["ctrl+c"], ["Ctrl", "C"], ["page down"], ["Return"], ["cmd", "s"], ["'ctrl'", "'c'"], ["ctrl c"]):
        yield Case("names of keys", say + tagged(tool_json(action="key", keys=keys)))
    yield Case("keys that the tool's list does not hold", say + tagged(tool_json(action="key", keys=["volumeup"])))
    yield Case("keys as text", say + tagged(tool_json(action="key", keys="ctrl")))
    for end in (tool_json(action="wait", time=2), tool_json(action="wait", time="2"), tool_json(action="terminate")):
        yield Case("an end", say + tagged(end))
        yield Case("wait or terminate without a line `Action:`", f"I am done here.\n{tagged(end)}")
    for status in ("success", "done", ""):
        yield Case("an end", say + tagged(tool_json(action="terminate", status=status)))
    for status in ("failure", "failed"):
        yield Case("terminate with failure", say + tagged(tool_json(action="terminate", status=status)))
    yield from _qwen_forms(say, is_qwen3)
    further = [
        tool_json(action="triple_click", coordinate=[3, 4]),
        tool_json(action="hscroll", pixels=2),
        tool_json(action="answer", text="42"),
    ]
    for call in further:
        yield Case("Qwen3-VL's further actions" if is_qwen3 else "not in the tool", say + tagged(call))
    for arguments in (
        {"action": "fly"},
        {},
        {"action": 5},
        {"action": "scroll"},
        {"action": "scroll", "pixels": 0},
        {"action": "key", "keys": []},
        {"action": "key"},
        {"action": "left_click", "coordinate": "[1, 2]"},
        {"action": "left_click", "coordinate": [1, 2, 3]},
        {"action": "left_click", "coordinate": [1, 2, 3, 4]},
        {"action": "left_click", "coordinate": {"x": 1}},
    ):
        yield Case("not in the tool", say + tagged(tool_json(**arguments)))
    for call in ("{}", "[1]", "left_click(1, 2)", '{"name": "bash", "arguments": {"action": "wait"}}', '{"name": '):
        yield Case("not in the tool", say + tagged(call))
    yield from _qwen_reports(say)
    for text in (
        "",
        "I cannot help.",
        say,
        "<tool_call>",
        "<tool_call>\n</tool_call>",
        "Action: click(start_box='(1,2)')",
    ):
        yield Case("no call", text)


_QWEN_REPORTS = (
    "other marks around a call~```json\nCALL\n```~<tools>\nCALL\n</tools>~<function_call>\nCALL\n</function_call>",
    "a sign behind the JSON~TAG\nCALL}\nEND~TAG\nCALL;\nEND~TAG\nCALL,\nEND",
    "broken JSON~TAG\n[CALL]\nEND~TAG\n{'name'\nCALL\nEND~TAG\n{\"function\": CALL}\nEND~TAG\n\u201cCALL\u201d\nEND",
    "lines that end as on Windows~TAG\r\nCALL\r\nEND\r\n~TAG\r\n\r\nCALL\r\nEND",
    *(f"text behind a call~TAG\nCALL\nEND{behind}" for behind in BEHIND),
    *(f"any space around an action~TAG{space}\n{space}CALL{space}\nEND{space}" for space in SPACES),
)


def _qwen_reports(say: str) -> Iterator[Case]:
    """As public reports of errors have them."""
    for arguments in ({"action": "left_click", "coordinate": [30, 40]}, {"action": "wait"}):
        call = tool_json(**arguments)
        for kind, *forms in (row.split("~") for row in _QWEN_REPORTS):
            for form in forms:
                text = form.replace("TAG", "<tool_call>").replace("CALL", call).replace("END", "</tool_call>")
                yield Case(kind, say + text)
        for old, new in (('"', "'"), ('"', "\u201d"), (":", "\uff1a"), ("arguments", "parameters"), ("}}", "},}")):
            yield Case("broken JSON", say + tagged(call.replace(old, new)))
        text = json.dumps({"name": "computer_use", "arguments": json.dumps(arguments)})
        yield Case("arguments as text", say + tagged(text))
        yield Case("a call in Qwen3.5's tags", say + tagged(function_tags(**arguments)))
    for place, name in itertools.product(FRACTIONS, ("left_click", "mouse_move", "left_click_drag")):
        yield Case("a position in fractions", say + tagged(tool_json(action=name, coordinate=place)))
    for place in ([0, 0], [0, 1], [1, 1], [1.0, 0.0], [0.5, 30]):
        yield Case("a position near the corner", say + tagged(tool_json(action="left_click", coordinate=place)))
    for place in ("(30, 40)", "30,40", [[30, 40]], [30], [], {"x": 30, "y": 40}, ["30", "40"], [None, 40], "<point>"):
        yield Case("an odd coordinate", say + tagged(tool_json(action="left_click", coordinate=place)))
    for keys in KEY_NOTATIONS:
        yield Case("another notation of keys", say + tagged(tool_json(action="key", keys=[keys])))


def function_tags(**arguments: object) -> str:
    """A call as Qwen3.5's template writes it."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()}
    said = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return f"<function=computer_use>\n{said}</function>"


def _unread_arguments() -> Iterator[dict[str, object]]:
    """Of calls whose action the official runner does, without what these arguments say."""
    for name in ("left_click", "right_click", "middle_click", "double_click"):
        yield {"action": name, "x": 300, "y": 200}
        yield {"action": name, "position": [300, 200]}
        yield {"action": name, "coordinate": [10, 20], "coordinate2": [300, 200]}
        yield {"action": name, "coordinate": [10, 20], "keys": ["ctrl"]}
        yield {"action": name, "coordinate": [10, 20], "clicks": 3}
        yield {"action": name, "coordinate": [10, 20], "button": "middle" if name != "middle_click" else "right"}
    for start in ("start_coordinate", "coordinate1", "from"):
        yield {"action": "left_click_drag", start: [10, 20], "coordinate": [300, 200]}
        yield {"action": "left_click_drag", start: "(10, 20)", "coordinate": [300, 200]}
    for pixels, direction in ((5, "down"), (-5, "up"), (5, "left"), (-5, "right")):
        yield {"action": "scroll", "pixels": pixels, "direction": direction}
        yield {"action": "scroll", "pixels": pixels, "clicks": "3"}
    for switch in ({"clear": True}, {"enter": True}, {"coordinate": [10, 20]}, {"clear": "true"}, {"presses": 2}):
        yield {"action": "type", "text": "hello", **switch}
        yield {"action": "key", "keys": ["ctrl", "a"], **switch}


def _qwen_forms(say: str, is_qwen3: bool) -> Iterator[Case]:
    calls = [tool_json(action="left_click", coordinate=[30, 40]), tool_json(action="key", keys=["enter"])]
    for call in calls:
        for text in THOUGHTS:
            yield Case("text around", f"{text}\n{tagged(call)}\nThen I look at it.")
        yield Case("space around", f"\n{say}\n\n <tool_call>\n\n  {call}\n </tool_call>\n\n")
        yield Case("JSON over lines", say + tagged(json.dumps(json.loads(call), indent=2)))
        yield Case("no closing tag", f"{say}<tool_call>\n{call}")
        yield Case("no tag", f"{say}{call}")
        yield Case("no tag", call)
        yield Case("a call on its tag's line", f"{say}<tool_call>{call}</tool_call>")
        yield Case("a call on its tag's line", f"{say}<tool_call>\n{call}</tool_call>")
        yield Case("a call within the thinking", f"<think>\n{tagged(call)}\n</think>\n{say}{tagged(calls[0])}")
        yield Case("a second call that is broken", f"{say}{tagged(call)}\n{tagged('{')}")
        other = tagged('{"name": "bash", "arguments": {"command": "ls"}}')
        yield Case("a call to another tool beside it", f"{say}{tagged(call)}\n{other}")
        yield Case("more than 8 calls", say + "\n".join([tagged(call)] * 9))
        for sign in "\u2697\U0001f4d0":
            kind = "Qwen2.5-VL's signs in a reply of Qwen3-VL" if is_qwen3 else "Qwen2.5-VL's signs"
            yield Case(kind, f"{say}<tool_call>\n{call}\n{sign}")
            yield Case(kind if not is_qwen3 else "signs for both tags", f"{say}{sign}\n{call}\n{sign}")
            both = f"{say}{sign}\n{call}\n{sign}\n{sign}\n{call}\n{sign}"
            yield Case("Qwen2.5-VL's signs around several calls" if not is_qwen3 else "signs for both tags", both)
    for first, second in itertools.permutations(calls, 2):
        yield Case("several calls", f"{say}{tagged(first)}\n{tagged(second)}")
        yield Case("several calls", f"{say}{tagged(first)}\nThen:\n\n{tagged(second)}")
        yield Case("several calls within one tag", f"{say}<tool_call>\n{first}\n{second}\n</tool_call>")
