"""An episode's screenshots made small: single frames with a mark where the agent pointed, and a strip of them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from PIL import Image, ImageDraw, ImageFont

from arpo_verl.errors import ImageError
from arpo_verl.images import read_image

_BACKGROUND, _MISSING, _TEXT, _FAINT = "#ffffff", "#d0d4da", "#1b1f24", "#57606a"
_MARK, _MARK_EDGE = "#d1242f", "#ffffff"
_MARK_RADIUS = 7
_FONT_PX, _LINE_PX, _CAPTION_LINES = 12, 15, 4
_GAP_PX = 8
_TALLEST = 4
# Of the bundled font, on average; a line that is longer is cut at the frame's edge.
_CHARACTER_PX = 6


@dataclass(frozen=True)
class Frame:
    """What the agent saw and what it wrote then."""

    screenshot: bytes | None = field(repr=False)
    """PNG or JPEG; None where it is not on disk any more."""
    caption: str
    points: tuple[tuple[float, float], ...] = ()
    """Where it pointed, in pixels of the screenshot, in order."""


def thumbnail(frame: Frame, width: int) -> Image.Image:
    """The screenshot at this width with its marks; a grey area where it is missing or is no image."""
    try:
        image = read_image(frame.screenshot or b"")
        height = max(1, round(width * image.height / image.width))
        if height > _TALLEST * width:
            raise ImageError(f"no screen is {image.width}x{image.height}")
    except ImageError:
        return Image.new("RGB", (width, round(width * 3 / 4)), _MISSING)
    small = image.resize((width, height))
    scale = width / image.width
    _draw_marks(small, [(x * scale, y * scale) for x, y in frame.points])
    return small


def film_strip(frames: Sequence[Frame], width: int = 320, columns: int = 4) -> Image.Image:
    """All frames in rows, each with its number and the beginning of its caption below."""
    pictures = [thumbnail(frame, width) for frame in frames]
    height = max((picture.height for picture in pictures), default=1) + (_CAPTION_LINES + 1) * _LINE_PX
    rows, columns = math.ceil(len(frames) / columns) or 1, min(columns, len(frames)) or 1
    strip = Image.new("RGB", (columns * (width + _GAP_PX), rows * (height + _GAP_PX)), _BACKGROUND)
    for number, (frame, picture) in enumerate(zip(frames, pictures, strict=True)):
        row, column = divmod(number, columns)
        position = (column * (width + _GAP_PX), row * (height + _GAP_PX))
        strip.paste(picture, position)
        strip.paste(_caption(number, frame.caption, width), (position[0], position[1] + picture.height))
    return strip


def _caption(number: int, text: str, width: int) -> Image.Image:
    image = Image.new("RGB", (width, (_CAPTION_LINES + 1) * _LINE_PX), _BACKGROUND)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(_FONT_PX)
    lines = textwrap.wrap(text, width // _CHARACTER_PX, max_lines=_CAPTION_LINES, placeholder=" …")
    for line, content in enumerate((f"{number + 1}", *lines)):
        draw.text((2, line * _LINE_PX), content, fill=_TEXT if line else _FAINT, font=font)
    return image


def _draw_marks(image: Image.Image, points: Sequence[tuple[float, float]]) -> None:
    draw = ImageDraw.Draw(image)
    for x, y in points:
        for radius, color in ((_MARK_RADIUS + 2, _MARK_EDGE), (_MARK_RADIUS, _MARK)):
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=color, width=3)
