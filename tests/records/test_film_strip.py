"""Screenshots made small, with marks, in a strip."""

import functools
import io

import numpy as np
import pytest
from PIL import Image
from support import pictures

from arpo_verl.errors import ImageError
from arpo_verl.records.film_strip import Frame, film_strip, moving_picture, thumbnail

png = functools.partial(pictures.png, size=(640, 480))


def test_a_film_strip_puts_frames_in_rows_and_keeps_the_order():
    colors = ["navy", "green", "maroon", "olive", "purple"]
    strip = film_strip([Frame(png(color), color) for color in colors], width=100)
    row_height = strip.height // 2
    centres = [(50 + 108 * (n % 4), 30 + row_height * (n // 4)) for n in range(5)]
    expected = [Image.new("RGB", (1, 1), color).getpixel((0, 0)) for color in colors]
    assert [strip.getpixel(centre) for centre in centres] == expected


def test_where_the_agent_pointed_is_marked_at_the_scaled_place():
    plain, marked = thumbnail(Frame(png("navy"), ""), 320), thumbnail(Frame(png("navy"), "", ((400, 200),)), 320)
    changed = [
        (x, y) for x in range(320) for y in range(240) if plain.getpixel((x, y)) != marked.getpixel((x, y))
    ]  # fmt: skip
    centre = [sum(values) / len(values) for values in zip(*changed, strict=True)]
    assert centre == pytest.approx((200, 100), abs=1)


@pytest.mark.parametrize("content", [None, b"", b"no image", png("navy")[:100]])
def test_a_missing_or_torn_screenshot_leaves_a_grey_frame(content):
    assert thumbnail(Frame(content, ""), 80).size == (80, 60)
    strip = film_strip([])  # one empty place, as wide as a frame: a table of episodes keeps its rows
    assert film_strip([Frame(content, "x")]).width == strip.width > 300
    assert strip.getcolors() == [(strip.width * strip.height, (255, 255, 255))]


def test_a_moving_picture_shows_each_frame_with_its_clicks_and_the_last_one_longer():
    frames = [Frame(png("navy"), "first", ((320, 240),)), Frame(None, "second"), Frame(png("green"), "third")]
    picture = Image.open(io.BytesIO(moving_picture(frames, width=200)))
    assert (picture.format, picture.n_frames, picture.info["loop"]) == ("GIF", 3, 0)
    shown = []
    for number in range(3):
        picture.seek(number)
        shown.append((picture.convert("RGB").getpixel((20, 20)), picture.info["duration"]))
    assert [seconds for _, seconds in shown] == [1500, 1500, 4000]
    assert shown[0][0][2] > 100 > shown[0][0][0] and shown[2][0] == (0, 128, 0)
    picture.seek(0)
    pixels = np.asarray(picture.convert("RGB"))[60:90, 85:115]
    assert ((pixels[..., 0] > 180) & (pixels[..., 1] < 100)).any()
    with pytest.raises(ImageError, match="has no frame to draw"):
        moving_picture([])
