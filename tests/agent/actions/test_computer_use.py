"""The computer_use tool call of Qwen2.5-VL and Qwen3-VL to typed actions and back."""

import json

import pytest
from support.official_replies import function_tags, tagged

from arpo_verl.agent.actions.computer_use import MAX_SCROLL_NOTCHES
from arpo_verl.agent.actions.reply import MAX_ACTIONS, MAX_REPLY_CHARS, Reply
from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.models.qwen import said_action
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Point, Scroll, Size, TypeText, Wait

IMAGE, SCREEN = Size(364, 252), Size(640, 480)
PIXELS, THOUSANDTHS = load_family("qwen25_vl"), load_family("qwen3_vl")


def call(**arguments):
    return f"<tool_call>\n{json.dumps({'name': 'computer_use', 'arguments': arguments})}\n</tool_call>"


def in_tags(**arguments):
    return tagged(function_tags(**arguments))


def actions_of(text, grammar=PIXELS):
    return grammar.read(text, IMAGE, SCREEN).actions


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "left_click", "coordinate": [182, 126]}, Click(Point(320, 240))),
        ({"action": "left_click"}, Click(None)),
        ({"action": "left_click", "coordinate": None, "text": None}, Click(None)),
        ({"action": "right_click", "coordinate": [0, 0]}, Click(Point(0, 0), "right")),
        ({"action": "middle_click", "coordinate": [0, 0]}, Click(Point(0, 0), "middle")),
        ({"action": "double_click", "coordinate": [0, 0]}, Click(Point(0, 0), count=2)),
        ({"action": "mouse_move", "coordinate": [364, 252]}, Move(Point(639, 479))),
        ({"action": "left_click_drag", "coordinate": [182, 126]}, Drag(None, Point(320, 240))),
        ({"action": "scroll", "pixels": 5}, Scroll("up", None, 5)),
        ({"action": "scroll", "pixels": -(10**9)}, Scroll("down", None, MAX_SCROLL_NOTCHES)),
        ({"action": "scroll", "pixels": 0.2}, Scroll("up", None, 1)),
        ({"action": "scroll", "pixels": "-5"}, Scroll("down", None, 5)),
        ({"action": "key", "keys": ["ctrl", "c"]}, Hotkey(("ctrl", "c"))),
        ({"action": "key", "keys": ["Control+Shift+T"]}, Hotkey(("ctrl", "shift", "t"))),
        ({"action": "key", "keys": [" "]}, Hotkey(("space",))),
        ({"action": "key", "keys": ["keys=[ctrl", "c']"]}, Hotkey(("ctrl", "c"))),
        (
            {"action": "type", "text": "it's </tool_call> \n\"\u00e9\u4e2d"},
            TypeText("it's </tool_call> \n\"\u00e9\u4e2d"),
        ),
        ({"action": "type", "text": "'); import os; ('"}, TypeText("'); import os; ('")),
        ({"action": "wait"}, Wait()),
        ({"action": "left_click", "coordinate": [0, 0], "text": "", "keys": [], "colour": "red"}, Click(Point(0, 0))),
        ({"action": "left_click", "coordinate": [0, 0], "button": "left", "time": 2}, Click(Point(0, 0))),
        ({"action": "left_click", "coordinate": [0, 0], "clear": False, "pixels": 0}, Click(Point(0, 0))),
        ({"action": "left_click_drag", "coordinate": [0, 0], "duration": 2}, Drag(None, Point(0, 0))),
        ({"action": "scroll", "pixels": -5, "direction": " Down"}, Scroll("down", None, 5)),
        ({"action": "key", "keys": ["down", "down"]}, Hotkey(("down", "down"))),
        ({"action": "terminate", "status": "success", "text": "5"}, Finish()),
        ({"action": "terminate", "status": "success"}, Finish()),
        ({"action": "terminate", "status": "failure"}, Fail()),
        ({"action": "terminate", "status": "Failed"}, Fail()),
        ({"action": "terminate", "status": "infeasible"}, Fail()),
        ({"action": "terminate"}, Finish()),
        ({"action": "terminate", "status": "done"}, Finish()),
    ],
)
def test_every_action_of_both_tools_parses(arguments, action):
    for grammar in (PIXELS, THOUSANDTHS) if "coordinate" not in arguments else (PIXELS,):
        assert actions_of(call(**arguments), grammar) == (action,)
        assert actions_of(in_tags(**arguments), grammar) == (action,)


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "triple_click", "coordinate": [0, 0]}, Click(Point(0, 0), count=3)),
        ({"action": "hscroll", "pixels": 2}, Scroll("right", None, 2)),
        ({"action": "hscroll", "pixels": -2}, Scroll("left", None, 2)),
        ({"action": "answer", "text": "42"}, Finish("42")),
    ],
)
def test_qwen25_has_not_what_qwen3_has(arguments, action):
    assert actions_of(call(**arguments), THOUSANDTHS) == (action,)
    with pytest.raises(ActionParseError, match=f"unknown action '{arguments['action']}'; known: double_click, key"):
        actions_of(call(**arguments))
    with pytest.raises(ActionParseError, match=f"computer_use has no {arguments['action']} for this model"):
        PIXELS.format(Reply("", (action,)), IMAGE, SCREEN)


WAIT_JSON = json.dumps({"name": "computer_use", "arguments": {"action": "wait"}})
CLICK_JSON = json.dumps({"name": "computer_use", "arguments": {"action": "left_click"}})


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n{call}\n\u2697",
        "<tool_call>\n{call}\n\U0001f4d0",
        "\u2697\n{call}\n\u2697",
        "\u2697{call}\u2697",
        "I do it. \U0001f4d0 {call}\U0001f4d0",
        "\U0001f4d0\n{call}\n\U0001f4d0\n",
        "<tool_call>\n{call}",
        "{call}",
        "Action: I do it.\n  {call}",
        "I write <tool_call> now.\n<tool_call>{call}</tool_call>",
        in_tags(action="wait").removeprefix("<tool_call>"),
        "<tool_call><function=computer_use><parameter=action>wait</parameter></function>",
        "<tool_call>\n{call}\n</tool_call>\nNow I wait for {the} <tool_call> to be done.",
        "<tool_call>\n{call}}\n</tool_call>",
        '<tool_call>\n{call}\n</tool_call>\n"status": "done"',
    ],
)
@pytest.mark.parametrize("grammar", [PIXELS, THOUSANDTHS])
def test_tags_may_be_missing_or_signs_and_text_may_follow(text, grammar):
    assert actions_of(text.replace("{call}", WAIT_JSON), grammar) == (Wait(),)


@pytest.mark.parametrize(
    "between", ["", ",", "\n", "\n</tool_call>\n<tool_call>\n", "\n\u2697\n\u2697\n", "</tool_call>then<tool_call>"]
)
def test_several_calls_are_done_in_order(between):
    assert actions_of(f"<tool_call>\n{WAIT_JSON}{between}{CLICK_JSON}\n</tool_call>") == (Wait(), Click(None))


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        *(
            (f'"action": "type", "text": {number}', TypeText(number))
            for number in ("10.50", "1e3", "3.14159265358979323846", "12345678901234567890")
        ),
        ('"action": "wait", "action": "terminate"', Finish()),
    ],
)
def test_a_number_is_typed_as_it_was_written_and_of_two_arguments_the_last_counts(arguments, action):
    assert actions_of(f'<tool_call>{{"name": "computer_use", "arguments": {{{arguments}}}}}</tool_call>') == (action,)


@pytest.mark.parametrize("written", [call, in_tags])
def test_what_a_call_does_is_listed_where_no_words_say_it(written):
    assert (
        said_action(written(action="left_click", coordinate=[1, 2]), ("action:",), False)
        == "Performing left_click action"
    )


def test_qwen3_counts_in_thousandths_of_the_screen():
    for coordinate, point in (([500, 500], (320, 240)), ([0, 0], (0, 0)), ([1000, 1000], (639, 479))):
        assert actions_of(call(action="left_click", coordinate=coordinate), THOUSANDTHS) == (Click(Point(*point)),)
    with pytest.raises(ActionParseError, match="x must be within the image, 0 to 1000 thousandths, got 1001"):
        actions_of(call(action="left_click", coordinate=[1001, 0]), THOUSANDTHS)


def test_the_thought_is_what_stands_before_the_first_call():
    text = f"Action: I open the menu.\n{call(action='wait')}\n{call(action='left_click')}"
    assert PIXELS.parse(text, IMAGE, SCREEN) == Reply("Action: I open the menu.", (Wait(), Click(None)))
    assert PIXELS.parse(call(action="wait"), IMAGE, SCREEN).thought == ""


@pytest.mark.parametrize("opening", ["<think>\n", ""])
def test_a_tag_within_the_thinking_is_no_call(opening):
    # The template of a thinking model writes the opening tag itself, so that the reply may lack it.
    text = f"{opening}I might write{'' if not opening else ' <tool_call>'}.\n</think>\n\n{call(action='wait')}"
    assert actions_of(text) == (Wait(),)
    assert actions_of(call(action="type", text="</think>")) == (TypeText("</think>"),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must have its action as JSON within <tool_call>"),
        (f"<think> <tool_call>{WAIT_JSON} </think> nothing", "must have its action as JSON within <tool_call>"),
        (call(action="wait") + "<tool_call>{", "must be JSON: "),
        ("<tool_call>{}</tool_call>", "a JSON object with name and arguments"),
        ('{"name": "computer_use", "arguments": "{}"}', "arguments must be a JSON object, got the text '{}'"),
        ('{"name": "bash", "arguments": {}}', "the tool must be computer_use, got the text 'bash'"),
        (in_tags(action="wait").replace("=computer_use", ""), "must have its action as JSON within <tool_call>"),
        (in_tags(action="wait").replace("function=computer_use", "function="), "must name its function, got '<functi"),
        (in_tags(action="wait").replace("</function>", ""), "must end with </function>, got '</tool_call>'"),
        (in_tags(action="left_click", coordinate="[" * 9999), "a list of two numbers, got the text '[[["),
        ('<tool_call>{"name": "computer_use", "arguments": {}}</tool_call>', "must name its action"),
        (call(action="wait") * (MAX_ACTIONS + 1), "at most 8 tool calls"),
        (call(action="fly"), "unknown action 'fly'; known: double_click, key"),
        (call(action="type", text="a\x07"), "must be characters that a keyboard can type, got '\\x07'"),
        (call(action="type", text="a\x7f"), "must be characters that a keyboard can type, got '\\x7f'"),
        (call(action="key", keys=["a " * 500] * 13), "a hotkey must have at most 100 keys, got 6500"),
        (call(action="key", keys=["a" * 1001]), "keys in at most 1000 characters, got 1001"),
        (call(action="left_click", coordinate=[365, 0]), "x must be within the image, 0 to 364 pixels, got 365"),
        *(
            (
                call(action="left_click", coordinate=value),
                f"coordinate must be [x, y], a list of two numbers, got {value}",
            )
            for value in ([1, 2, 3], [[1, 2]], [None, 2], {"x": 1}, [True, 2], [], False, ["1", "2"])
        ),
        (call(action="left_click", coordinate=[10**400, 2]), "coordinate must be [x, y]"),
        (call(action="left_click", coordinate=[float("nan"), 2]), "a number must be finite, got NaN"),
        (call(action="mouse_move"), "coordinate must say where to"),
        (call(action="left_click", x=5, y=0), "left_click takes coordinate, not x, y: it would do something else"),
        (call(action="left_click", coordinate=[0, 0], coordinate2=[1, 1]), "left_click takes coordinate, not coord"),
        (call(action="left_click", coordinate=[0, 0], click_type="double"), "not click_type"),
        (call(action="key", keys=["enter"], text="hello"), "key takes keys, not text"),
        (call(action="scroll", pixels=5, direction="downwards"), "not direction"),
        (call(action="scroll", pixels=5, direction="horizontal"), "not direction"),
        (call(action="terminate", status="unsuccessful"), "status must be success or failure, got"),
        (CLICK_JSON[:-1] + ', "coordinate": [1, 2]}', "computer_use takes name, arguments, not coordinate"),
        (call(action="type", text="a", key="enter"), "not key"),
        (call(action="left_click", **{"a\n" * 999: {"b": [1]}}), "left_click takes coordinate, not a"),
        (call(action="scroll", pixels=1, **{f"{n}{chr(0xDCBC) * 40}": 1 for n in range(9)}), "scroll takes pixels"),
        (call(action="left_click_drag", start="(0, 0)", coordinate=[1, 1]), "not start"),
        (call(action="scroll", pixels=0), "pixels must be a number other than 0"),
        (call(action="type"), "text must be a string"),
        (call(action="scroll", pixels="far"), "pixels must be a number other than 0, got"),
        (call(action="type", text="\ud800"), "text must be a string of characters"),
        (call(action="key", keys="ctrl"), "keys must be a list of key names"),
        (call(action="key", keys=[]), "keys must be a list of key names"),
        ("<tool_call>{" + '"a":' + "[" * 39_000, "must be JSON of sensible size"),
        ("<tool_call>{" + '"a":' + "9" * 39_000, "must be JSON of sensible size"),
        ("<tool_call>" + '{"a":' * 7900, "must be JSON"),
        ("a" * (MAX_REPLY_CHARS + 1), "at most 40000 characters"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_the_reason(text, reason):
    with pytest.raises(ActionParseError) as caught:
        actions_of(text)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


def test_the_canonical_form_is_that_of_the_prompt():
    reply = Reply("I click.", (Click(Point(320, 240)), Fail()))
    written = ["I click."]
    for arguments in ({"action": "left_click", "coordinate": [182, 126]}, {"action": "terminate", "status": "failure"}):
        written.append(call(**arguments))
    assert PIXELS.format(reply, IMAGE, SCREEN) == "\n".join(written)
    assert PIXELS.format(Reply("", (Fail(),)), IMAGE, SCREEN) == written[-1]
    assert '"text": "é"' in PIXELS.format(Reply("", (TypeText("é"),)), IMAGE, SCREEN)
    assert '"pixels": 1}' in PIXELS.format(Reply("", (Scroll("up", notches=1),)), IMAGE, SCREEN)
    assert '"coordinate": [500, 500]' in THOUSANDTHS.format(reply, IMAGE, SCREEN)


@pytest.mark.parametrize("action", [Scroll("up", notches=10**6), Click(None, "right", 2)])
def test_what_the_tool_lacks_cannot_be_written(action):
    with pytest.raises(ActionParseError, match="computer_use has no"):
        PIXELS.format(Reply("", (action,)), IMAGE, SCREEN)


@pytest.mark.parametrize("tag", ["<tool_call>", "</think>", "\u2697 {", '\n{"name": 1}'])
def test_a_thought_that_holds_one_of_the_grammars_tags_cannot_be_written(tag):
    with pytest.raises(ActionParseError, match="must not hold the grammar's own tags, got 'a "):
        PIXELS.format(Reply(f"a {tag} b", (Fail(),)), IMAGE, SCREEN)
