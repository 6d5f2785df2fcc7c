"""Which screenshots show one state, and what tells an episode that it does not begin in a recorded one."""

import io
import json
import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from arpo_verl.errors import DesktopLostError, ReplayError
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.rollout.prefix import Prefix
from arpo_verl.rollout.screen import CELLS, GRID, changed_cells, same_screens, stack, thumbnail

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


@pytest.mark.parametrize("size", [(1, 1), (7680, 4320), (1600, 8)])
def test_a_hostile_screen_is_another_state_and_costs_no_more_than_its_decoding(size):
    """A desktop sends what it likes: one pixel, the largest screen, the widest."""
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
ENDLESS = json.dumps(SHORT | {"left": math.inf})


@pytest.mark.parametrize("text", ["x", "[]", '{"replies": 3}', json.dumps(SHORT), ENDLESS, "[" * 10**5], ids=range(6))
def test_what_is_no_prefix_is_refused(text):
    with pytest.raises(ReplayError, match="extra_info.resume must be"):
        Prefix.of_text(text)


def screen(size=(1920, 1080), clock="10:41", pointer=(900, 500), caret=False, text="", button="Cancel"):
    """A desktop with a panel, a window, a field and a button; texts are dark rectangles as wide as they are long."""
    image = Image.new("RGB", size, (58, 110, 165))
    draw = ImageDraw.Draw(image)
    x, y = size[0] / 1920, size[1] / 1080

    def box(left, top, width, height, color):
        draw.rectangle((left * x, top * y, (left + width) * x, (top + height) * y), color)

    box(0, 0, 1920, 27, (20, 20, 20))
    for place, digit in enumerate(clock):
        box(930 + 12 * place, 6, 2 + ord(digit) % 7, 14, (230, 230, 230))
    box(400, 200, 1000, 600, (240, 240, 240))
    box(450, 300, 600, 60, (255, 255, 255))
    for place in range(len(text)):
        box(460 + 24 * place, 310, 14, 36, (0, 0, 0))
    if caret:
        box(460 + 24 * len(text), 308, 2, 40, (0, 0, 0))
    box(450, 700, 40 * len(button), 60, (200, 60, 60) if button == "OK" else (200, 200, 200))
    draw.polygon([pointer, (pointer[0], pointer[1] + 19), (pointer[0] + 12, pointer[1] + 13)], "white", "black")
    return image


def same(a, b, tolerance=8):
    return bool(same_screens(stack([thumbnail(a)]), stack([thumbnail(b)]), tolerance)[0, 0])


@pytest.mark.parametrize("size", [(1920, 1080), (1280, 720), (640, 480)])
def test_clock_pointer_and_caret_do_not_make_another_screen(size):
    far = (size[0] * 3 // 4, size[1] * 2 // 3)
    first = screen(size, pointer=(size[0] // 3, size[1] // 2))
    assert same(first, screen(size, clock="23:58", pointer=far, caret=True))


@pytest.mark.parametrize("size", [(1920, 1080), (1280, 720), (640, 480)])
@pytest.mark.parametrize("change", [{"text": "a line of words"}, {"button": "OK"}])
def test_a_line_of_text_or_another_button_does(size, change):
    assert not same(screen(size), screen(size, **change))


def test_without_tolerance_screens_must_look_alike():
    size = (640, 480)
    assert same(screen(size), screen(size), tolerance=0)
    assert not same(screen(size, pointer=(40, 300)), screen(size, pointer=(600, 300)), tolerance=0)


def test_every_pair_is_compared_and_no_third_has_a_say():
    shots = [screen(), screen(button="OK"), screen(clock="11:11")]
    thumbnails = stack([thumbnail(shot) for shot in shots])
    expected = np.array([[True, False, True], [False, True, False], [True, False, True]])
    assert (same_screens(thumbnails, thumbnails, 8) == expected).all()
    assert (same_screens(thumbnails[:1], thumbnails[1:], 8) == expected[:1, 1:]).all()
    assert same_screens(stack([]), thumbnails, 8).shape == (0, 3)
