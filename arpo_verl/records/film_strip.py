"""Draws an episode's small screenshots, with a mark where the agent pointed: single, as a strip, or as a GIF."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from arpo_verl.errors import ImageError
from arpo_verl.lib.images import MAX_BYTES, read_image
from arpo_verl.lib.untrusted import read_regular
from arpo_verl.records.episode_file import RecordedAction, read_episode
from arpo_verl.records.layout import screenshot_names

MOST_FRAMES = 100
"""Most frames of a GIF: a frame takes a tenth of a second to make, and 50 kB."""

_BACKGROUND, _MISSING, _TEXT, _FAINT = "#ffffff", "#d0d4da", "#1b1f24", "#57606a"
_MARK, _MARK_EDGE = "#d1242f", "#ffffff"
_MARKS_ACROSS = 45
"""The picture's width, in radii of a mark."""
_FONT_PX, _LINE_PX, _CAPTION_LINES = 12, 15, 4
_GAP_PX = 8
_COLUMNS = 4
_TALLEST = 4
_MOST_TEXT, _MOST_PIXELS = 2000, 100_000
"""Most characters of a caption; largest coordinate that we draw."""
_FRAME_MS, _LAST_MS = 1500, 4000
# The bundled font's average width; longer lines are cut at the frame's edge.
_CHARACTER_PX = 6


@dataclass(frozen=True)
class Frame:
    """What the agent saw, and what it wrote then."""

    screenshot: bytes | None = field(repr=False)
    """PNG or JPEG; None if it is no longer on disk."""
    caption: str
    points: tuple[tuple[float, float], ...] = ()
    """Where the agent pointed, in pixels of the screenshot, in order."""


def recorded_frames(folder: Path) -> list[Frame]:
    """Return the first `MOST_FRAMES` turns of a recorded episode: screenshot, reply, and where the agent pointed.

    Raises:
        OSError: the folder has no readable episode.
        ValueError: the episode's file is incomplete.
    """
    content, on_disk = read_episode(folder), set(screenshot_names(folder))
    frames = []
    for turn in content.turns[:MOST_FRAMES]:
        number = turn.screenshot
        name = content.screenshots[number] if number is not None and 0 <= number < len(content.screenshots) else None
        shot = _read(folder / name) if name in on_disk else None
        frames.append(Frame(shot, turn.text[:_MOST_TEXT], tuple(_points(turn.actions))))
    return frames


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path, MAX_BYTES)
    except OSError:  # a link, a pipe, or gone meanwhile
        return None


def _points(actions: Sequence[RecordedAction]) -> Iterator[tuple[float, float]]:
    for action in actions:
        for place in (action.point, action.start, action.end):
            if place is not None and max(map(abs, place)) < _MOST_PIXELS:
                yield place


def thumbnail(frame: Frame, width: int) -> Image.Image:
    """Return the screenshot at this width with its marks; a grey area if it is missing or no image."""
    try:
        image = read_image(frame.screenshot or b"")
        height = max(1, round(width * image.height / image.width))
        if height > _TALLEST * width:
            raise ImageError(f"no screen is {image.width}x{image.height}")
    except ImageError:
        return Image.new("RGB", (width, round(width * 3 / 4)), _MISSING)
    small = image.resize((width, height))
    scale = width / image.width
    _draw_marks(small, [(x * scale, y * scale) for x, y in frame.points], width // _MARKS_ACROSS)
    return small


def film_strip(frames: Sequence[Frame], width: int = 320, number: int = 0) -> Image.Image:
    """Draw all frames in rows, each with its number and the start of its caption below; the first is `number`."""
    pictures = [thumbnail(frame, width) for frame in frames]
    height = max((picture.height for picture in pictures), default=1) + (_CAPTION_LINES + 1) * _LINE_PX
    rows, columns = math.ceil(len(frames) / _COLUMNS) or 1, min(_COLUMNS, len(frames)) or 1
    strip = Image.new("RGB", (columns * (width + _GAP_PX), rows * (height + _GAP_PX)), _BACKGROUND)
    for place, (frame, picture) in enumerate(zip(frames, pictures, strict=True)):
        row, column = divmod(place, columns)
        position = (column * (width + _GAP_PX), row * (height + _GAP_PX))
        strip.paste(picture, position)
        strip.paste(_caption(number + place, frame.caption, width), (position[0], position[1] + picture.height))
    return strip


def moving_picture(frames: Sequence[Frame], width: int = 800) -> bytes:
    """Return all frames as a GIF, with captions as in a strip; slides, chats and web pages can show it.

    Raises:
        ImageError: there are no frames.
    """
    if not frames:
        raise ImageError("the episode has no frame to draw")
    pictures = [film_strip([frame], width, number=number) for number, frame in enumerate(frames)]
    size = (pictures[0].width, max(picture.height for picture in pictures))
    even = [ImageOps.pad(picture, size, color=_BACKGROUND, centering=(0, 0)) for picture in pictures]
    file = io.BytesIO()
    times = [_FRAME_MS] * (len(even) - 1) + [_LAST_MS]
    even[0].save(file, "GIF", save_all=True, append_images=even[1:], duration=times, loop=0, optimize=False)
    return file.getvalue()


def _caption(number: int, text: str, width: int) -> Image.Image:
    image = Image.new("RGB", (width, (_CAPTION_LINES + 1) * _LINE_PX), _BACKGROUND)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(_FONT_PX)
    lines = textwrap.wrap(text, width // _CHARACTER_PX, max_lines=_CAPTION_LINES, placeholder=" …")
    for line, content in enumerate((f"{number + 1}", *lines)):
        draw.text((2, line * _LINE_PX), content, fill=_TEXT if line else _FAINT, font=font)
    return image


def _draw_marks(image: Image.Image, points: Sequence[tuple[float, float]], radius_px: int) -> None:
    draw = ImageDraw.Draw(image)
    for x, y in points:
        for radius, color in ((radius_px + 2, _MARK_EDGE), (radius_px, _MARK)):
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=color, width=3)
