"""Everything that reads a model's text or somebody's files, under hypothesis: nothing comes of it but data, and nothing
is raised but a refusal. What must hold is in `benchmarks/fuzz_targets.py`, which `make fuzz` runs under a
coverage-guided fuzzer."""

import json

import pytest
from fuzz_targets import (
    EPISODE,
    MANIFEST_FIELDS,
    RESUMED,
    SNIPPETS,
    STORED,
    TARGETS,
    TASK,
    WORDS,
    check_code,
    clients_source,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arpo_verl.agent.actions.keys import KEY_NAMES
from arpo_verl.agent.models.family import SHIPPED
from arpo_verl.types import Click, Drag, Hotkey, Move, Point, Scroll, TypeText, Wait

# Words of the grammars, of the code and of what OSWorld's client looks for in it, in any order, between any text.
PIECES = st.one_of(st.sampled_from(WORDS), st.sampled_from(SNIPPETS), st.text(max_size=8), st.characters())
TEXT = st.lists(PIECES, max_size=12).map("".join)
TEMPLATES = (
    "{}",
    "Thought: {0}\nAction: type(content='{0}')",
    'Action: type(content="{}")\n\nwait()',
    "Action: click(start_box='{}')",
    "Action: hotkey(key='{}')",
    "Action: scroll(start_box='(1,2)', direction='{}')",
    "Action: finished(content='{}')",
    "<tool_call>{}</tool_call>",
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["coordinate", "text", "keys", "pixels", "status"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=4,
)
NAMES = st.sampled_from(
    "left_click double_click left_click_drag key type mouse_move scroll hscroll wait terminate answer".split()
)
CALLS = st.builds(
    lambda name, arguments: (
        f"<tool_call>{json.dumps({'name': 'computer_use', 'arguments': {**arguments, 'action': name}})}</tool_call>"
    ),
    NAMES,
    ARGUMENTS,
)
REPLIES = CALLS | st.builds(
    lambda template, text: template.replace("{}", text).replace("{0}", text), *map(st.sampled_from, [TEMPLATES]), TEXT
)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.sampled_from([10**400, "/dev/zero", "\x1b[2J"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def changed(*documents):
    """One of these documents as JSON, with other values in some of its fields."""
    return st.one_of(map(_changed, documents))


def _changed(document):
    fields = st.dictionaries(st.sampled_from(sorted(document)), VALUES, max_size=2)
    return fields.map(lambda new: json.dumps(document | new))


EXAMPLES = settings(max_examples=100)  # `make fuzz` gives the same targets a million
PROGRAM = ("import pyautogui\n", "pyautogui.", "click(", "1, -2", "x=", ")", ";", "time.sleep(", "'''", "\n", "os.")
METRICS = {"step": 1, "data": {"a": 1}, "time": 1, "uid": "u", "rows": [{"session": 0}], "turns": [{}], "recipe": {}}
STORES = st.builds("{}\0{}".format, changed(MANIFEST_FIELDS), changed(STORED))
DOCUMENTS = changed(STORED, EPISODE, TASK, METRICS, RESUMED) | STORES | TEXT


@pytest.mark.parametrize(
    "target", ["stored", "store", "recorded", "resumed", "task", "script", "configuration", "printed"]
)
@given(text=DOCUMENTS)
@EXAMPLES
def test_a_file_from_somebody_else_is_refused_or_is_what_it_says(target, text):
    TARGETS[target](text)


@pytest.mark.parametrize("family", SHIPPED)
@given(text=REPLIES)
@EXAMPLES
def test_a_reply_is_refused_or_becomes_actions_that_stay_what_they_are(family, text):
    TARGETS[family](text)


@given(TEXT | st.lists(st.sampled_from([*sorted(KEY_NAMES), "+", "-", " "]), max_size=6).map("".join))
@EXAMPLES
def test_names_of_keys_are_refused_or_known(text):
    TARGETS["keys"](text)


@given(TEXT)
@example("pyautogui.press('<')")
@example("\\pyautogui.typewrite('\\u003c')")
@example("'); pyautogui.typewrite('a<b'); ('")
@EXAMPLES
def test_typed_text_is_typed_whatever_the_client_makes_of_the_code(text):
    TARGETS["typed"](text)


@given(TEXT | st.lists(st.sampled_from(PROGRAM), max_size=6).map("".join))
@EXAMPLES
def test_a_programs_code_is_refused_or_actions_alone(text):
    TARGETS["program"](text)


@given(TEXT, st.lists(REPLIES, max_size=3))
@example("\u65e5" * 300, ["Action: wait()"])
@example("..", ["\ud800"])
@EXAMPLES
def test_an_episode_of_any_replies_is_recorded_as_it_was(name, replies):
    TARGETS["episode"]("\0".join([name.replace("\0", ""), *(reply.replace("\0", "") for reply in replies)]))


POINTS = st.builds(Point, st.integers(0, 5000), st.integers(0, 5000))
ACTIONS = st.one_of(
    st.builds(Click, st.none() | POINTS, st.sampled_from(["left", "right", "middle"]), st.integers(1, 3)),
    st.builds(Drag, st.none() | POINTS, POINTS),
    st.builds(Move, POINTS),
    st.builds(Hotkey, st.lists(st.sampled_from(sorted(KEY_NAMES)) | TEXT, min_size=1, max_size=4).map(tuple)),
    st.builds(TypeText, TEXT),
    st.builds(Scroll, st.sampled_from(["up", "down", "left", "right"]), st.none() | POINTS, st.none() | st.integers()),
    st.just(Wait()),
)


@given(ACTIONS)
@EXAMPLES
def test_any_action_is_the_same_calls_behind_the_clients_rewriting(action):
    if clients_source("desktop_env.py", "_fix_pyautogui_less_than_bug") is None:
        pytest.skip("desktop-env is not installed")
    check_code(action)
