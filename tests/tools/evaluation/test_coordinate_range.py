"""Whether a model seems to write thousandths where its family reads pixels."""

import pytest

from arpo_verl.tools.evaluation.answers import CoordinateRange
from arpo_verl.types import Size

WIDE, NARROW = Size(1932, 1092), Size(980, 728)
THOUSANDTHS = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [400, 400]}}'


def click(x, y):
    return f"Action: click(start_box='({x},{y})')"


@pytest.mark.parametrize(
    ("replies", "image", "warnings", "family"),
    [
        ([click(1000, 900)] * 20, WIDE, 0, "ui_tars_15"),  # too few to say so
        ([click(1000, 900)] * 100, WIDE, 1, "ui_tars_15"),
        ([click(1000, 900)] * 100, NARROW, 0, "ui_tars_15"),
        ([click(1001, 5)] + [click(5, 5)] * 100, WIDE, 0, "ui_tars_15"),
        ([click(5, 1001)] + [click(5, 5)] * 100, WIDE, 0, "ui_tars_15"),
        (["Action: click("] * 100, WIDE, 0, "ui_tars_15"),
        (["Action: drag(start_box='(1,2)', end_box='(3,4)')"] * 11, WIDE, 1, "ui_tars_15"),
        ([THOUSANDTHS] * 100, WIDE, 0, "qwen3_vl"),
        ([THOUSANDTHS] * 100, WIDE, 1, "qwen25_vl"),
    ],
)
def test_positions_up_to_1000_alone_are_warned_of_when_chance_is_no_explanation(
    caplog, replies, image, warnings, family
):
    positions = CoordinateRange(family)
    for reply in replies:
        positions.see(reply, image)
    told = [record.getMessage() for record in caplog.records if "above 1000" in record.getMessage()]
    assert len(told) == warnings
    assert all(f"gui_agent.model_family={family} reads pixels" in line for line in told)
