"""Which screenshots show one state, and what tells an episode that it does not begin in a recorded one."""

import pytest
from PIL import Image, ImageDraw

from arpo_verl.errors import ReplayError
from arpo_verl.rollout.prefix import Prefix
from arpo_verl.rollout.screen import CELL, ScreenCells

TOLERANCE = 4
SCREENS = [(640, 480), (1920, 1080), (1000, 701)]


def desktop(size, clock="Nov 22 23:58", caret=False, text="notes.txt", dialog=False, wallpaper=(44, 60, 80)):
    image = Image.new("RGB", size, wallpaper)
    draw = ImageDraw.Draw(image)
    draw.text((size[0] // 2, 2), clock, fill="white")
    draw.rectangle((100, 100, 420, 300), fill="white", outline="black")
    draw.text((110, 110), text, fill="black")
    if caret:
        draw.line((180, 110, 180, 124), fill="black")
    if dialog:
        draw.rectangle((200, 180, 360, 260), fill=(230, 230, 230), outline="black")
    return image


def mismatch(size, first, now, before=None, recorded=None):
    cells = [ScreenCells.of(desktop(size, **kwargs)) for kwargs in (before or {}, recorded or {})]
    prefix = Prefix(((1,),), 1, *cells, TOLERANCE)
    assert Prefix.of_text(prefix.to_text()) == prefix
    return prefix.mismatch(desktop(size, **first), desktop(size, **now))


@pytest.mark.parametrize("size", SCREENS)
def test_the_clock_of_another_day_its_next_minute_and_a_caret_are_no_other_state(size):
    first, now = {"clock": "Aug 04 05:47"}, {"clock": "Aug 04 05:48", "caret": True, "dialog": True}
    assert mismatch(size, first, now, recorded={"dialog": True}) is None
    assert mismatch(size, {}, {}) is None


@pytest.mark.parametrize("size", SCREENS)
@pytest.mark.parametrize("change", [{"dialog": True}, {"text": "notes.txt and some words"}])
def test_a_dialog_and_words_are_another_state(size, change):
    assert "cells differ" in mismatch(size, {"clock": "Aug 04 05:47"}, {"clock": "Aug 04 05:47", **change})
    assert "cells differ" in mismatch(size, {}, {}, recorded=change)


def test_a_task_that_begins_otherwise_is_never_in_the_state():
    # All cells differ before, so that none would be left to tell the states apart.
    other = {"wallpaper": (200, 200, 200)}
    assert "the task began with" in mismatch((640, 480), other, {**other, "dialog": True})


def test_screens_of_other_sizes_are_others():
    cells = ScreenCells.of(desktop((640, 480)))
    assert cells.changed(ScreenCells.of(desktop((656, 480)))) is None
    assert cells.changed(ScreenCells(cells.size, b"")) is None
    prefix = Prefix((), 1, cells, cells, TOLERANCE)
    assert "656x480" in prefix.mismatch(desktop((656, 480)), desktop((656, 480)))


def test_it_is_a_byte_for_a_cell():
    assert len(ScreenCells.of(desktop((1920, 1080))).levels) == -(-1920 // CELL) * -(-1080 // CELL) == 8160


@pytest.mark.parametrize("text", ["x", "[]", '{"replies": 3}', '{"replies": [], "left": 1, "screens": [[1, 1, "AA"]]}'])
def test_what_is_no_prefix_is_refused(text):
    with pytest.raises(ReplayError, match="extra_info.resume must be"):
        Prefix.of_text(text)
