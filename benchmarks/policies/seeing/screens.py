"""Screens to learn reading from: drawn here in thousands, or captured from a desktop, recoloured and shifted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from policies.seeing.layout import CELL, COLUMNS, ROWS, SCREEN

_FONTS = "/usr/share/fonts/truetype/dejavu"
_FACES = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono")
# Capitals are 9 to 12 pixels tall.
_SIZES = (13, 14, 15, 16)
_TITLE = ("DejaVuSans-Bold", 12)


@dataclass(frozen=True)
class Text:
    """A text on a screen: what it says, and its ink or its widget as (left, top, right, bottom) in pixels."""

    text: str
    box: tuple[float, float, float, float]
    letters: tuple[float, ...] = ()
    """The middles of its letters, pixels from the left; none where they are not known."""
    is_title: bool = False
    target: tuple[float, float] | None = None
    """Where a click on it goes; None: into its middle."""
    window: str = ""
    """The title of the window that it stands in."""

    @property
    def centre(self) -> tuple[float, float]:
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2


@dataclass(frozen=True)
class Screen:
    """A picture and all texts on it."""

    pixels: np.ndarray
    """(336, 448, 3) uint8."""
    texts: tuple[Text, ...]


def draw_sheet(words: Sequence[str], rng: random.Random, plain: bool = False) -> Screen:
    """Draw a screen full of words of `words`, in places, sizes, faces, colours and boxes drawn from `rng`.

    Args:
        plain: dark on light alone, which is learned first.
    """
    image = Image.new("RGB", SCREEN, _paper(rng, plain))
    draw = ImageDraw.Draw(image)
    texts: list[Text] = []
    top = rng.randrange(-8, 6)
    while top < SCREEN.height - 12:
        height, band = rng.randrange(17, 32), _paper(rng, plain)
        draw.rectangle((0, top, SCREEN.width, top + height), fill=band)
        left = rng.randrange(-30, 10)
        while left < SCREEN.width - 10:
            word, paper = rng.choice(words), band
            is_title = rng.random() < 0.2
            font = _font(*(_TITLE if is_title else (rng.choice(_FACES), rng.choice(_SIZES))))
            ink = font.getbbox(word)
            x, y = left + rng.randrange(2, 10), top + (height - ink[3] - ink[1]) // 2 + rng.randrange(-2, 3)
            box = (x + ink[0], y + ink[1], x + ink[2], y + ink[3])
            margin = rng.randrange(2, 10)
            if rng.random() < 0.3:
                paper = _paper(rng, plain)
                edge = _colour(rng) if rng.random() < 0.6 else None
                frame = (box[0] - margin, box[1] - rng.randrange(2, 8), box[2] + margin, box[3] + rng.randrange(2, 8))
                draw.rectangle(frame, fill=paper, outline=edge)
            # X draws its own fonts without grey edges.
            draw.fontmode = rng.choice(("1", "L"))
            draw.text((x, y), word, font=font, fill=(16, 16, 16) if plain else _contrast(rng, paper))
            if box[0] >= 0 and box[2] <= SCREEN.width and box[1] >= 0 and box[3] <= SCREEN.height:
                ends = [x + font.getlength(word[:n]) for n in range(len(word) + 1)]
                texts.append(Text(word, box, tuple((a + b) / 2 for a, b in pairwise(ends)), is_title))
            left = int(box[2]) + margin + rng.choice((1, 2, 4, 8, 16, 30))
        top += height + rng.choice((0, 0, 1, 3, 8))
    return Screen(np.array(image), tuple(texts))


def moved(text: Text, dx: float, dy: float) -> Text | None:
    """The text elsewhere; None: it would leave the screen, or its target would."""
    left, top, right, bottom = text.box
    box = (left + dx, top + dy, right + dx, bottom + dy)
    target = None if text.target is None else (text.target[0] + dx, text.target[1] + dy)
    x, y = target or (box[0], box[1])
    on_screen = min(*box, x, y) >= 0 and max(box[2], x + 1) <= SCREEN.width and max(box[3], y + 1) <= SCREEN.height
    return replace(text, box=box, target=target) if on_screen else None


def shifted(pixels: np.ndarray, dx: int, dy: int) -> np.ndarray:
    """The picture moved, and what leaves it on one side entering at the other."""
    rolled: np.ndarray = np.roll(pixels, (dy, dx), (0, 1))
    return rolled


def recoloured(pixels: np.ndarray, rng: random.Random) -> np.ndarray:
    """Through a random linear map of colours that keeps contrast."""
    map_ = np.eye(3) * rng.uniform(0.5, 1.0) * rng.choice((1, 1, -1))
    map_ = map_[rng.sample(range(3), 3)] + np.array([[rng.uniform(-0.15, 0.15) for _ in range(3)] for _ in range(3)])
    values = (pixels / 255.0 - 0.5) @ map_.T + 0.5 + np.array([rng.uniform(-0.15, 0.15) for _ in range(3)])
    clipped: np.ndarray = (np.clip(values, 0, 1) * 255).astype(np.uint8)
    return clipped


def cells_of(text: Text) -> list[int]:
    """The visual tokens, counted row by row, that hold a part of the text worth the name, in its middle's row."""
    left, _, right, _ = text.box
    row = int(text.centre[1] // CELL)
    if not 0 <= row < ROWS:
        return []
    enough = min(10.0, (right - left) / 3)
    first, last = int(left // CELL), int((right - 1) // CELL)
    columns = (c for c in range(max(first, 0), min(last, COLUMNS - 1) + 1))
    return [row * COLUMNS + c for c in columns if min(right, (c + 1) * CELL) - max(left, c * CELL) >= enough]


@lru_cache(maxsize=64)
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(f"{_FONTS}/{name}.ttf", size)


def _paper(rng: random.Random, plain: bool) -> tuple[int, int, int]:
    if not plain:
        return _colour(rng)
    grey = rng.randrange(225, 256)
    return grey, grey, grey


def _colour(rng: random.Random) -> tuple[int, int, int]:
    if rng.random() < 0.4:
        grey = rng.choice((255, 250, 240, 225, 210, 180, 60, 40, 20))
        return grey, grey, grey
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)


def _contrast(rng: random.Random, paper: tuple[int, int, int]) -> tuple[int, int, int]:
    while True:
        colour = _colour(rng)
        if rng.random() < 0.3:
            colour = (20, 20, 20) if sum(paper) > 380 else (245, 245, 245)
        if abs(sum(colour) - sum(paper)) > 230:
            return colour
