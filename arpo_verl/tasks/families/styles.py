"""What windows of generated tasks show, and how: words, colours, and fonts with the places of their texts. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from string import ascii_letters
from typing import NamedTuple

from arpo_verl.types import Size

SCREEN = Size(448, 336)
"""The screen of every generated task, in pixels."""

WORDS: tuple[str, ...] = tuple(
    """
    Acorn Amber Anchor Apple Badge Bamboo Banana Barrel Basket Beach Birch Blue Bottle Bread Bridge Bronze Brush Butter
    Cactus Camel Candle Canyon Carrot Castle Cedar Cherry Circle Cloud Clover Cobalt Coffee Copper Coral Cotton Crimson
    Desert Diamond Dolphin Donkey Dragon Drum Eagle Echo Ember Engine Falcon Feather Fern Fig Flute Forest Fox Garden
    Garlic Ginger Globe Gold Grape Green Guitar Hammer Harbor Hazel Honey Ivory Jacket Jade Jungle Kettle Kite Ladder
    Lagoon Lamp Lemon Lily Lime Lion Magnet Mango Marble Meadow Melon Mint Mirror Moon Needle Nickel Oak Ocean Olive
    Onion Orange Otter Oyster Panda Paper Peach Pear Pepper Piano Pillow Plum Pocket Purple Quartz Quilt Rabbit Radish
    River Rocket Ruby Saddle Salmon Silver Spoon Square Tiger Tulip Turtle Velvet Violet Walnut Willow Yellow Zebra
    """.split()
)
"""All words, as tasks show them: short, common, unlike each other, and none part of another."""

HELD_OUT_WORDS: tuple[str, ...] = WORDS[2::5]
"""Words that no training or validation task has; the tasks of the split `held_out_words` have only these."""

TRAINING_WORDS: tuple[str, ...] = tuple(word for word in WORDS if word not in HELD_OUT_WORDS)


class Rectangle(NamedTuple):
    """Pixels of the screen, from the top left; `right` and `bottom` are the first ones outside."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True)
class Label:
    """A text on the screen, and the box of its letters, from the capitals' tops to the descenders' ends."""

    text: str
    box: Rectangle


class Theme(NamedTuple):
    """The colours of a window, its text, its buttons and their text."""

    window: str
    text: str
    button: str
    button_text: str


THEMES: tuple[Theme, ...] = (
    Theme("#ffffff", "#101010", "#e4e4e4", "#101010"),
    Theme("#203040", "#f4e6a0", "#4a6078", "#ffffff"),
    Theme("#f6ecd8", "#402010", "#80402a", "#fff4e0"),
    Theme("#d8ead8", "#103818", "#206838", "#f4fff4"),
    Theme("#181818", "#e8e8e8", "#383838", "#80f0a0"),
    Theme("#d4e4f8", "#102850", "#f8f8ff", "#1030a0"),
)
HELD_OUT_THEMES: tuple[Theme, ...] = (
    Theme("#341840", "#f8d8f8", "#f0c040", "#301830"),
    Theme("#f8d8d0", "#601020", "#186070", "#e8fcff"),
)
"""The themes that only tasks of the split `held_out_themes` have."""

# Advances of A to Z and a to z in 2048ths of the font's size, from DejaVu 2.37's `hmtx` tables.
# fmt: off
_SANS = (
    1401, 1405, 1430, 1577, 1294, 1178, 1587, 1540, 604, 604, 1343, 1141, 1767, 1532, 1612, 1235, 1612, 1423, 1300,
    1251, 1499, 1401, 2025, 1403, 1251, 1403, 1255, 1300, 1126, 1300, 1260, 721, 1300, 1298, 569, 569, 1186, 569, 1995,
    1298, 1253, 1300, 1300, 842, 1067, 803, 1298, 1212, 1675, 1212, 1212, 1075,
)
_SERIF = (
    1479, 1505, 1567, 1642, 1495, 1421, 1636, 1786, 809, 821, 1530, 1360, 2097, 1792, 1679, 1378, 1679, 1542, 1403,
    1366, 1726, 1479, 2105, 1458, 1352, 1423, 1221, 1311, 1147, 1311, 1212, 758, 1311, 1319, 655, 635, 1241, 655, 1942,
    1319, 1233, 1311, 1311, 979, 1051, 823, 1319, 1157, 1753, 1155, 1157, 1079,
)
_BOLD = (
    1585, 1561, 1503, 1700, 1399, 1399, 1681, 1714, 762, 762, 1587, 1305, 2038, 1714, 1741, 1501, 1741, 1577, 1475,
    1397, 1663, 1585, 2259, 1579, 1483, 1485, 1382, 1466, 1214, 1466, 1389, 891, 1466, 1458, 702, 702, 1362, 702, 2134,
    1458, 1407, 1466, 1466, 1010, 1219, 979, 1458, 1335, 1892, 1321, 1335, 1192,
)
# fmt: on
_ADVANCES = {
    face: dict(zip(ascii_letters.upper()[:26] + ascii_letters[:26], advances, strict=True))
    for face, advances in {"Sans": _SANS, "Serif": _SERIF, "Sans Mono": (1233,) * 52, "Sans Bold": _BOLD}.items()
}
FACES = ("Sans", "Serif", "Sans Mono")
SIZES = (13, 14, 15, 16)
"""Font sizes in pixels; capitals are 0.73 of the size tall, so 9 to 12 pixels."""


@dataclass(frozen=True)
class Font:
    """A face of DejaVu at a size."""

    face: str
    pixels: int

    @property
    def ascent(self) -> int:
        """The distance from the top of a line to its baseline, in pixels."""
        return round(0.928 * self.pixels)

    @property
    def line(self) -> int:
        """The height of a line in pixels, as in Pango."""
        return math.ceil(0.928 * self.pixels) + math.ceil(0.236 * self.pixels)

    def width(self, text: str) -> int:
        """Return a word's width in pixels: X, and Pango with hinting, round each letter's advance to whole pixels."""
        return sum(math.floor(_ADVANCES[self.face][letter] * self.pixels / 2048 + 0.5) for letter in text)

    def centred(self, text: str, x: int, y: int) -> Label:
        """Place the word with its middle at x and y."""
        return self.starting(text, x - self.width(text) // 2, y)

    def starting(self, text: str, left: int, y: int) -> Label:
        """Place the word from `left` on, in a line with its middle at `y`."""
        return self.standing(text, left, y + round(0.346 * self.pixels))

    def standing(self, text: str, left: int, baseline: int) -> Label:
        """Place the word from `left` on, its letters on `baseline`."""
        top, bottom = baseline - math.ceil(0.76 * self.pixels), baseline + math.ceil(0.24 * self.pixels)
        return Label(text, Rectangle(left, top, left + self.width(text), bottom))


@dataclass(frozen=True)
class Style:
    """The look of one window."""

    theme: Theme
    font: Font
