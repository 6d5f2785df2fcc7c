"""Which screenshots show one state, and what tells an episode that it does not begin in a recorded one."""

import io
import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from arpo_verl.errors import DesktopLostError, ReplayError
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.rollout.prefix import Prefix
from arpo_verl.rollout.screen import CELLS, GRID, changed_cells, stack, thumbnail

TOLERANCE = ReplayConfig().resume_tolerance
SCREENS = [(640, 480), (1920, 1080), (1000, 701)]


def desktop(size, clock="Nov 22 23:58", caret=False, text="notes.txt", dialog=False, wallpaper=(44, 60, 80)):
    image = Image.new("RGB", size, wallpaper)
    draw = ImageDraw.Draw(image)
    draw.text((size[0] // 2, 2), clock, fill="white")
    draw.rectangle((100, 100, 420, 300), fill="white", outline="black")
    draw.text((110, 110), text, fill="black", font_size=14)
    if caret:
        draw.line((180, 110, 180, 124), fill="black")
    if dialog:
        draw.rectangle((200, 180, 360, 260), fill=(230, 230, 230), outline="black")
    return image


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def mismatch(size, first, now, before=None, recorded=None):
    screens = [png(desktop(size, **kwargs)) for kwargs in (before or {}, recorded or {})]
    prefix = Prefix.of_screenshots(((1,),), 1, *screens, TOLERANCE)
    assert Prefix.of_text(prefix.to_text()) == prefix
    return prefix.mismatch(png(desktop(size, **first)), png(desktop(size, **now)))


@pytest.mark.parametrize("size", SCREENS)
def test_the_clock_of_another_day_its_next_minute_and_a_caret_are_no_other_state(size):
    first, now = {"clock": "Aug 04 05:47"}, {"clock": "Aug 04 05:48", "caret": True, "dialog": True}
    assert mismatch(size, first, now, recorded={"dialog": True}) is None
    assert mismatch(size, {}, {}) is None


@pytest.mark.parametrize("size", SCREENS)
@pytest.mark.parametrize("change", [{"dialog": True}, {"text": "notes.txt and some more words"}])
def test_a_dialog_and_words_are_another_state(size, change):
    assert "cells differ" in mismatch(size, {"clock": "Aug 04 05:47"}, {"clock": "Aug 04 05:47", **change})
    assert "cells differ" in mismatch(size, {}, {}, recorded=change)


def test_a_task_that_begins_otherwise_is_never_in_the_state():
    # All cells differ before, so that none would be left to tell the states apart.
    other = {"wallpaper": (200, 200, 200)}
    assert "the task began with" in mismatch((640, 480), other, {**other, "dialog": True})


def test_screens_of_other_sizes_are_others():
    recorded, other = png(desktop((640, 480))), png(desktop((656, 480)))
    prefix = Prefix.of_screenshots((), 1, recorded, recorded, TOLERANCE)
    assert "656x480" in prefix.mismatch(other, other) and "656x480" in prefix.mismatch(recorded, other)
    assert prefix.mismatch(other, recorded) is not None


@pytest.mark.parametrize("size", [(1, 1), (7680, 4320), (60000, 3)])
def test_a_hostile_screen_is_another_state_and_costs_no_more_than_its_decoding(size):
    """A desktop sends what it likes: one pixel, the largest screen, one that is all width."""
    recorded = png(desktop((640, 480)))
    prefix = Prefix.of_screenshots((), 1, recorded, recorded, TOLERANCE)
    hostile = png(Image.new("RGB", size))
    assert "x".join(map(str, size)) in prefix.mismatch(recorded, hostile)
    assert len(thumbnail(Image.new("RGB", size))) == CELLS


def test_what_is_no_picture_is_the_desktop_s_fault():
    recorded = png(desktop((640, 480)))
    prefix = Prefix.of_screenshots((), 1, recorded, recorded, TOLERANCE)
    with pytest.raises(DesktopLostError):
        prefix.mismatch(recorded, recorded[:100])


def test_a_thumbnail_is_the_mean_grey_of_each_cell():
    image = Image.new("RGB", (GRID[0] * 10, GRID[1] * 10))
    image.paste((200, 200, 200), (0, 0, 10, 5))
    assert list(thumbnail(image)) == [100] + [0] * (CELLS - 1)
    # Each cell counts that is more than sixteen levels of 256 away, in either direction.
    (dark, light, lighter) = stack([bytes([level] * CELLS) for level in (100, 116, 117)])
    assert not changed_cells(dark, light).any() and not changed_cells(light, dark).any()
    assert changed_cells(dark, lighter).all() and changed_cells(lighter, dark).all()
    assert changed_cells(stack([]), dark).shape == (0, CELLS)
    assert np.array_equal(stack([bytes(CELLS)])[0], np.zeros(CELLS))


SHORT = {"replies": [], "left": 1, "screen": [1, 1], "thumbnails": "eJxjYAAAAAIAAQ==", "tolerance": 1}


@pytest.mark.parametrize("text", ["x", "[]", '{"replies": 3}', json.dumps(SHORT)])
def test_what_is_no_prefix_is_refused(text):
    with pytest.raises(ReplayError, match="extra_info.resume must be"):
        Prefix.of_text(text)
