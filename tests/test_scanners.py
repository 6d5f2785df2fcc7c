"""What reading hostile text costs: 50 ms a reply at most, and no regular expression that takes more than linear time.

CPU time, against what the same processor needs for a fixed piece of work: a slow or busy machine changes both.
"""

import ast
import gc
import importlib
import itertools
import pkgutil
import re
import time
from pathlib import Path

import pytest

from arpo_verl.agent.actions import calls
from arpo_verl.agent.actions.reply import MAX_REPLY_CHARS
from arpo_verl.agent.models.family import load_family
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Size

ROOMS = ("agent.actions", "agent.rollout", "records", "tasks")
BOUND_S = 0.050
REFERENCE_S = 0.009
"""CPU time of `reference()` on the machine that the bound was set on: two shared cores of a Xeon of 2.x GHz."""


def reference():
    """Work of the kind that the scanners do, a fixed amount: seconds of CPU time, the best of three."""
    pattern, text = re.compile(r"[\\\n]|'(?=[ \t\n]*[,)])"), "a quote ', and a \\ sign\n" * 400

    def once():
        began = time.thread_time()
        for _ in range(25):
            position = 0
            while (match := pattern.search(text, position)) is not None:
                position = match.end()
        return time.thread_time() - began

    return min(once() for _ in range(3))


def bound():
    """Seconds that the bound is on this machine."""
    return BOUND_S * max(1.0, reference() / REFERENCE_S)


def cpu_s(function, *arguments):
    """CPU time of a call, the best of three where the first is long: others may have thrown out the caches."""
    best = float("inf")
    gc.collect(0)  # a full collection of all that the tests have loaded takes longer than what is measured
    gc.disable()
    for _ in range(3):
        began = time.thread_time()
        try:
            function(*arguments)
        except ActionParseError as error:
            assert len(str(error)) < 500
        best = min(best, time.thread_time() - began)
        if best < BOUND_S / 2 or best > 4 * BOUND_S:
            break
    gc.enable()
    return best


# --- Replies ---------------------------------------------------------------------------------------------------------

OPENINGS = {
    "ui_tars_15": [
        *("", "Thought: ", "Action: ", "Action: type(content='", 'Action: type(content="', "Action: hotkey(key='"),
        *("Action: click(start_box='(", "Action: click(", "Action: click(start_box='<point>", "Action: scroll(a="),
    ],
    "qwen3_vl": [
        *(
            "",
            "<think>",
            "<tool_call>",
            '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "',
        ),
        '<tool_call>{"name": "computer_use", "arguments": {"action": "key", "keys": ["',
        '<tool_call>{"name": "computer_use", "arguments": {"action": "scroll", "pixels": ',
    ],
}
UNITS = {
    "ui_tars_15": [
        *("'", '"', "\\", "\\'", "\\n", "\n", "\r\n", "\t", "' ", "')", "',", "'),", "')#", "') ", "'\\n", "',a='"),
        *("',content='", "')\nclick(", "')type(", "\nAction:", "\nThought:", "Action:", "Action: type(content='a')\n"),
        *("a", "a ", "a.", "a=", "a='',", "1", "1,", "1.", "(", "(1,", ", ", " )", "#", "<", "<\\n", "\u00e9\\n"),
        *("ctrl+", "ctrl-", "page ", "+", "-", "<point>", "<|box_start|>", "wait()\n", "pyautogui.", "\U0001d4b3"),
    ],
    "qwen3_vl": [
        *('"', "\\", "\\\\", "\\n", "\\u003c", "\\ud800", "\n", " ", "<", "<\\n", "\\u00e9\\n", "{", "[", '{"a":', "9"),
        *("1e9", "1.", "-", '","', '","a', '","-', "]}},{", "a ", "a+", "<tool_call>", "<tool_call>{", "</think>"),
        *('\n{"name"', '\n{"name":', "\n{", '{"name":"computer_use","arguments":{}}', "\u2697", "\u2697 ", "\ud800"),
    ],
}
ENDS = {
    "ui_tars_15": ["", "')\n"],
    "qwen3_vl": ["", '"}}', '"]}}</tool_call>', "}}", "!"],
}


@pytest.mark.release
@pytest.mark.parametrize("grammar", list(UNITS))
def test_the_longest_hostile_reply_costs_no_more_than_50_ms(grammar):
    parse, size = load_family(grammar).parse, Size(1932, 1092)
    limit = bound()
    for opening, unit, end in itertools.product(OPENINGS[grammar], UNITS[grammar], ENDS[grammar]):
        times = (MAX_REPLY_CHARS - len(opening) - len(end)) // len(unit)
        text = opening + unit * times + end
        assert MAX_REPLY_CHARS - len(unit) < len(text) <= MAX_REPLY_CHARS
        taken, allowed = cpu_s(parse, text, size, size), limit
        for _ in range(5):  # the processor may have become slower since: both anew, one right after the other
            if taken >= allowed:
                allowed, taken = bound(), cpu_s(parse, text, size, size)
        assert taken < allowed, f"{taken:.3f} s for {text[:80]!r}, over and over, {end!r}; bound {allowed:.3f} s"


# --- Regular expressions ---------------------------------------------------------------------------------------------


def modules():
    """The modules of the rooms that read hostile text."""
    for room in ROOMS:
        package = importlib.import_module(f"arpo_verl.{room}")
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def patterns_in(name, value):
    """The compiled patterns in a module's value, with the name that it has there: in containers and scanners too."""
    if isinstance(value, re.Pattern):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from patterns_in(name, part)
    elif isinstance(value, calls.CallScanner):
        for attribute, part in vars(value).items():
            yield from patterns_in(attribute, part)


def written_patterns(module):
    """The patterns that a module's functions give to `re` as they run, with what `re` is to do."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            if isinstance(node.args[0], ast.Constant):
                yield node.func.attr, re.compile(node.args[0].value)
            else:  # put together: at import, where `patterns_in` finds it
                assert node.func.attr in ("compile", "escape"), ast.unparse(node)


def all_patterns():
    """Every pattern of these rooms, and whether it is looked for from every place of a text or tried at one."""
    found = {}
    sources = {module: Path(module.__file__).read_text(encoding="utf-8") for module in modules()}
    everything = "\n".join(sources.values())
    for module, source in sources.items():
        own = [item for item in vars(module).items() if item[0] != "__builtins__"]
        for name, pattern in (pair for item in own for pair in patterns_in(*item)):
            where = source if name in vars(module) else everything
            searched = re.search(rf"\b{name}(\[\w+\])?\.(search|finditer|findall|sub|split)\(", where) is not None
            found[pattern] = found.get(pattern, False) or searched
        for use, pattern in written_patterns(module):
            found[pattern] = found.get(pattern, False) or use not in ("match", "fullmatch", "compile")
    return found


def units_of(pattern):
    """Short texts that the pattern is about: its words, the signs of its sets, and pairs of them."""
    parser = getattr(re, "_parser", None) or importlib.import_module("sre_parse")
    words, signs = [""], []

    def walk(parsed):
        for name, value in parsed:
            if str(name) == "LITERAL":
                words[-1] += chr(value)
                signs.append(chr(value))
                continue
            words.append("")
            if str(name) == "RANGE":
                signs.append(chr(value[0]))
            elif str(name) == "CATEGORY":
                signs.append({"DIGIT": "0", "SPACE": " ", "WORD": "a"}[str(value).rpartition("_")[2]])
            elif str(name) == "IN":
                walk(value)
            elif str(name) in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT", "SUBPATTERN", "ASSERT", "ASSERT_NOT"):
                walk(value[-1])
            elif str(name) == "BRANCH":
                for branch in value[1]:
                    walk(branch)
            words.append("")

    walk(parser.parse(pattern.pattern, pattern.flags))
    short = list(dict.fromkeys([*[word for word in words if len(word) > 1][:6], *signs, "x"]))[:16]
    return [*short, *map("".join, itertools.permutations(short[:6], 2))]


def slow_input(pattern, searched, bound):
    """A text on which the pattern takes longer than the bound; None where none of those tried does."""
    ways = [pattern.match, pattern.fullmatch, *([lambda text: all(pattern.finditer(text))] if searched else ())]
    for unit, length in itertools.product(units_of(pattern), (24, 400, 8_000, MAX_REPLY_CHARS)):
        text = unit * (length // len(unit)) + "!"  # the shortest are long enough for one that takes exponential time
        if any(cpu_s(way, text) > bound for way in ways):
            return text[:40], length
    return None


def test_every_regular_expression_is_found():
    found = {pattern.pattern: searched for pattern, searched in all_patterns().items()}
    assert len(found) > 25
    assert found[calls._KEY.pattern] is False and found[calls._STOPS["'"].pattern] is True
    assert found[r"step_([0-9]{1,15})"] is False and found[r"(?<=\w)-(?=\w)"] is True
    assert any("finished" in pattern and searched for pattern, searched in found.items())  # of the scanner's own


# The last one is not searched with: that would take cubic time, two minutes of it.
@pytest.mark.parametrize(
    ("pattern", "searched"),
    [
        (r"(a+)+$", True),
        *(
            pytest.param(*case, marks=pytest.mark.release)
            for case in ((r"(\w+\s?)*!x", True), (r"\s+$", True), (r"a*b?a*c", False))
        ),
    ],
)
def test_one_that_takes_too_long_is_noticed(pattern, searched):
    assert slow_input(re.compile(pattern), searched, bound()) is not None


def test_no_regular_expression_takes_more_than_50_ms():
    limit = bound()
    slow = {pattern.pattern: slow_input(pattern, searched, limit) for pattern, searched in all_patterns().items()}
    assert {pattern: found for pattern, found in slow.items() if found} == {}
