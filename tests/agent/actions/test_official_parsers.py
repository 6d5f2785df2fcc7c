"""What OSWorld's own parsers and ours make of the same replies, and each difference that is meant, as
`support/reply_differences.py` lists them.

The official side is the installed package's: `mm_agents`' agents of UI-TARS-1.5, Qwen2.5-VL and Qwen3-VL. The code that
they write runs over stand-ins of pyautogui that note what they are told. What an official runner takes for no input,
for DONE after three tries or breaks over is malformed here, which counts as the same: docs/benchmark-fidelity.md.
"""

from collections import Counter
from dataclasses import dataclass

import pytest
from support import needs_words
from support.official_events import DIFFERENCES, DOCUMENT, NOTHING, alike, event_of, events_of
from support.official_replies import qwen_cases, ui_tars_cases

from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.errors import ActionError
from arpo_verl.types import Size

pytestmark = needs_words
SCREEN = Size(640, 480)
CASES = {
    "ui_tars": list(ui_tars_cases()),
    "qwen25_vl": list(qwen_cases("qwen25_vl")),
    "qwen3_vl": list(qwen_cases("qwen3_vl")),
}
IMAGES = {"ui_tars": Size(644, 476), "qwen25_vl": SCREEN, "qwen3_vl": SCREEN}


# --- Ours -------------------------------------------------------------------------------------------------------------


def ours(grammar, text):
    """Events, or `NOTHING`."""
    try:
        reply = load_family("ui_tars_15" if grammar == "ui_tars" else grammar).read(text, IMAGES[grammar], SCREEN)
    except ActionError:
        return NOTHING
    return [event for event in map(event_of, reply.actions) if event != ("text", "")] or NOTHING


# --- Theirs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs():
    """`theirs(grammar, text)`: events, or `NOTHING`."""
    from support.official_agents import official_module, png, qwen_agent

    module = official_module("uitars15_v1")
    qwen = {kind: qwen_agent(kind) for kind in ("qwen25_vl", "qwen3_vl")}
    screenshot = png()

    def call(grammar, text):
        if grammar == "ui_tars":
            return ui_tars_events(module, text, screenshot)
        try:
            codes = qwen[grammar].parse_response(text, *SCREEN, *SCREEN)[1]
        except (AttributeError, IndexError, TypeError, ValueError):  # the runner gives the task up
            return NOTHING
        return events_of(codes, press_is_text=False)

    return call


def ui_tars_events(module, text, screenshot):
    import fidelity
    from support.official_agents import doubao

    with doubao():
        agent = fidelity.reference_agent(module, [text], paste=False)
    try:
        prediction, codes = agent.predict("do it", {"screenshot": screenshot})
    except (TypeError, UnboundLocalError):  # the runner gives the task up
        return NOTHING
    return NOTHING if prediction == "client error" else events_of(codes, press_is_text=True)


# --- Both -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """One reply and what both make of it."""

    kind: str
    text: str
    theirs: object
    ours: object


@pytest.fixture(scope="module", params=CASES)
def compared(request, theirs):
    grammar = request.param
    return [
        Compared(case.kind, case.text, theirs(grammar, case.text), ours(grammar, case.text)) for case in CASES[grammar]
    ]


def test_there_are_enough_replies():
    assert sum(map(len, CASES.values())) >= 500
    assert all(len({case.text for case in cases}) > 0.9 * len(cases) for cases in CASES.values())


def test_both_make_the_same_of_a_reply_or_the_difference_is_listed(compared):
    unexpected = [case for case in compared if not alike(case.theirs, case.ours) and case.kind not in DIFFERENCES]
    assert not unexpected


def test_each_listed_difference_is_one(compared):
    """On every reply of its kind: a difference that is gone must leave the list."""
    gone = [case for case in compared if alike(case.theirs, case.ours) and case.kind in DIFFERENCES]
    assert not gone


def test_every_listed_difference_occurs_and_most_replies_are_no_difference():
    kinds = Counter(case.kind for cases in CASES.values() for case in cases)
    assert not set(DIFFERENCES) - set(kinds)
    assert sum(number for kind, number in kinds.items() if kind not in DIFFERENCES) >= 500


def test_the_document_says_how_many_replies_there_are():
    cases = [case for cases in CASES.values() for case in cases]
    assert f" {len(cases)} replies of {len({case.kind for case in cases})} kinds " in DOCUMENT


def test_the_rest_between_actions_is_that_of_the_official_parser():
    from support.official_agents import official_module

    click = {"action_type": "click", "action_inputs": {"start_box": "[0.5, 0.5, 0.5, 0.5]"}}
    code = official_module("uitars15_v1").parsing_response_to_pyautogui_code([click, click], 480, 640)
    assert f"time.sleep({GuiAgentConfig().between_actions_s:g})" in code
