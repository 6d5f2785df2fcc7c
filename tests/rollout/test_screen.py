"""Which screenshots show one state."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from arpo_verl.rollout.screen import CELLS, GRID, changed_cells, same_screens, stack, thumbnail


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
