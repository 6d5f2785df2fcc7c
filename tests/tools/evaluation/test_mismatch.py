"""What a server's answers show of a mismatch."""

import logging

import pytest

from arpo_verl.tools.evaluation import mismatch
from arpo_verl.tools.evaluation.mismatch import CoordinateRange
from arpo_verl.types import Size

WIDE, NARROW = Size(1932, 1092), Size(980, 728)


def warnings_of(caplog, grammar, replies, image=WIDE):
    positions = CoordinateRange(grammar)
    with caplog.at_level(logging.WARNING):
        for reply in replies:
            positions.saw(reply, image)
    return sum(record.name == mismatch.__name__ for record in caplog.records)


def click(x, y):
    return f"Action: click(start_box='({x},{y})')"


@pytest.mark.parametrize(
    ("replies", "image", "warnings"),
    [
        ([click(1000, 900)] * 20, WIDE, 0),  # too few to say so
        ([click(1000, 900)] * 100, WIDE, 1),
        ([click(1000, 900)] * 100, NARROW, 0),
        ([click(1001, 5)] + [click(5, 5)] * 100, WIDE, 0),
        ([click(5, 1001)] + [click(5, 5)] * 100, WIDE, 0),
        (["Action: click("] * 100, WIDE, 0),
        (["Action: wait()"] * 100, WIDE, 0),
        (["Action: drag(start_box='(1,2)', end_box='(3,4)')"] * 11, WIDE, 1),
    ],
)
def test_positions_up_to_1000_alone_are_warned_of_when_chance_is_no_explanation(caplog, replies, image, warnings):
    assert warnings_of(caplog, "ui_tars_15", replies, image) == warnings


def test_a_grammar_of_thousandths_is_never_warned_of(caplog):
    reply = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [400, 400]}}'
    assert warnings_of(caplog, "qwen3_vl", [reply] * 100) == 0
    assert warnings_of(caplog, "qwen25_vl", [reply] * 100) == 1
