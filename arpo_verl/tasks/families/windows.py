"""Make the commands that open windows of generated tasks, and compute where their texts will be. Pure.

We set all sizes of two programs: of `xmessage` by its resources, of `yad` by its style sheet. Sizes that neither lets
us set are constants here: we measured them once on the embedded desktop (Debian 12: openbox 3.6, GTK 3.24, yad 0.40)
with `xwininfo` and in screenshots. `tests/tasks/test_families.py` compares the labels with pixels of real screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from arpo_verl.tasks.families.styles import Font, Label, Rectangle, Style
from arpo_verl.types import Point, Size

# openbox's frame, theme Clearlooks with titles of 9 points, which are 12 pixels.
LEFT, RIGHT, TOP, BOTTOM = 1, 1, 20, 5
_TITLE = Font("Sans Bold", 12)
LEAST_WIDTH = 176
"""Least width of a frame: in a narrower one the longest title would be cut or not centred."""

_MARGIN = 6
_GAP = 5  # between two rows, for both GTK and xmessage


class Window(Protocol):
    """A window without a place yet."""

    @property
    def title(self) -> str:
        """The title in its bar, which no other window has."""

    @property
    def inner(self) -> Size:
        """The window's size without openbox's frame."""

    def command(self, at: Point) -> str:
        """Return a shell command that opens it with its frame's corner at `at`, and prints what was pressed."""

    def labels(self, at: Point) -> tuple[Label, ...]:
        """Return the texts in it, first its title."""

    def target(self, text: str, at: Point) -> Point:
        """Return where to click for this entry."""


def frame(window: Window) -> Size:
    """Return the window's size with openbox's frame."""
    return Size(window.inner.width + LEFT + RIGHT, window.inner.height + TOP + BOTTOM)


def title_label(window: Window, at: Point) -> Label:
    """Return the title in its bar."""
    return _TITLE.centred(window.title, at.x + frame(window).width // 2, at.y + TOP // 2)


def close_button(window: Window, at: Point) -> Point:
    """Return the middle of the title bar's last button."""
    return Point(at.x + frame(window).width - 11, at.y + TOP // 2)


def _middle(box: Rectangle) -> Point:
    return Point((box.left + box.right) // 2, (box.top + box.bottom) // 2)


# --- xmessage ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """A text, a row of buttons, or both. A press of a button closes it."""

    title: str
    style: Style
    text: str = ""
    text_size: Size = Size(LEAST_WIDTH - 14, 4)
    words: tuple[str, ...] = ()
    button: Size = Size(80, 26)
    gap: int = 8
    """Pixels between two buttons."""
    indent: int = 6
    """Pixels left of the first button."""

    @property
    def inner(self) -> Size:
        row = self.indent + len(self.words) * (self.button.width + 2 + self.gap) - self.gap
        below = _GAP + self.button.height + 2 if self.words else 0
        width = max(_MARGIN + self.text_size.width, row if self.words else 0) + _MARGIN
        return Size(width, _MARGIN + self.text_size.height + below + _MARGIN)

    def command(self, at: Point) -> str:
        theme, font = self.style.theme, self.style.font
        face = {"Sans": "sans", "Serif": "serif", "Sans Mono": "mono"}[font.face]
        resources = {
            "*defaultDistance": _MARGIN,
            "*font": f"-dejavu-{face}-medium-r-normal--{font.pixels}-*-*-*-*-*-iso8859-1",
            "*background": theme.window,
            "*foreground": theme.text,
            "*message.scrollVertical": "Never",
            "*message.displayCaret": "false",
            "*message.borderWidth": 0,
            "*message.width": self.text_size.width,
            "*message.height": self.text_size.height,
            "*Command.shapeStyle": "rectangle",
            "*Command.background": theme.button,
            "*Command.foreground": theme.button_text,
            "*Command.width": self.button.width,
            "*Command.height": self.button.height,
            "*Command.horizDistance": self.gap,
            **({f"*{self.words[0]}.horizDistance": self.indent} if self.words else {}),
        }
        options = " ".join(f"-xrm '{name}: {value}'" for name, value in resources.items())
        buttons = ",".join(self.words)
        place = f"-title {self.title} -geometry +{at.x}+{at.y}"
        return f"xmessage {place} {options} -print -buttons '{buttons}' '{self.text}'"

    def labels(self, at: Point) -> tuple[Label, ...]:
        font = self.style.font
        texts = [font.centred(word, *_middle(self._box(word, at))) for word in self.words]
        if self.text:
            left, top = at.x + LEFT + _MARGIN + 2, at.y + TOP + _MARGIN + 2
            texts.insert(0, font.standing(self.text, left, top + font.ascent))
        return (title_label(self, at), *texts)

    def target(self, text: str, at: Point) -> Point:
        return _middle(self._box(text, at))

    def _box(self, word: str, at: Point) -> Rectangle:
        number = self.words.index(word)
        left = at.x + LEFT + self.indent + number * (self.button.width + 2 + self.gap)
        top = at.y + TOP + _MARGIN + self.text_size.height + _GAP
        return Rectangle(left, top, left + self.button.width + 2, top + self.button.height + 2)


# --- yad ---------------------------------------------------------------------------------------------------------

_SHEET = (
    '* {{ font: {pixels}px "DejaVu {face}"; text-shadow: none }} '
    "window, .background, treeview.view {{ background: {window}; color: {text} }} "
    "treeview.view:selected {{ background: {text}; color: {window} }} "
    "button {{ background: {button}; color: {button_text}; border: 1px solid {button_text}; border-radius: 0; "
    "box-shadow: none; margin: 0; padding: 0; min-width: {width}px; min-height: {height}px }} "
    "checkbutton {{ min-height: 24px; margin: 0; padding: 0 }} "
    "check {{ min-width: 14px; min-height: 14px; margin: 0 6px 0 0 }}"
)
_CHECK_ROW, _CHECK_TEXT = 24, 22
_OK_ASKED, _OK, _OK_MARGIN = Size(60, 26), Size(85, 27), 8  # GTK makes a dialog's buttons wider


def _yad(title: str, style: Style, button: Size, size: Size, at: Point, rest: str) -> str:
    font, (width, height) = style.font, button
    sheet = _SHEET.format(
        **style.theme._asdict(), pixels=font.pixels, face=font.face, width=width - 2, height=height - 2
    )
    place = f"--title={title} --borders={_MARGIN} --geometry={size.width}x{size.height}+{at.x}+{at.y}"
    folder = "~/.config/gtk-3.0"
    return f"mkdir -p {folder}; echo '{sheet}' > {folder}/gtk.css; yad {place} {rest}"


@dataclass(frozen=True)
class Grid:
    """Buttons in columns, from top to bottom. A press of one closes it."""

    title: str
    style: Style
    words: tuple[str, ...]
    columns: int = 1
    button: Size = Size(120, 28)

    @property
    def _rows(self) -> int:
        return -(-len(self.words) // self.columns)

    @property
    def inner(self) -> Size:
        width, height = self.button
        return Size(
            2 * _MARGIN + self.columns * (width + _GAP) - _GAP,
            2 * _MARGIN + self._rows * (height + _GAP) - _GAP,
        )

    def command(self, at: Point) -> str:
        press = """--field={0}:FBTN 'sh -c "echo {0} > ~/pressed; kill -USR1 $YAD_PID"'"""
        fields = " ".join(press.format(word) for word in self.words)
        rest = f"--form --columns={self.columns} --no-buttons {fields} > /dev/null; cat ~/pressed"
        return _yad(self.title, self.style, self.button, self.inner, at, rest)

    def labels(self, at: Point) -> tuple[Label, ...]:
        texts = (self.style.font.centred(word, *self.target(word, at)) for word in self.words)
        return (title_label(self, at), *texts)

    def target(self, text: str, at: Point) -> Point:
        column, row = divmod(self.words.index(text), self._rows)
        width, height = self.button
        left = at.x + LEFT + _MARGIN + column * (width + _GAP)
        return Point(left + width // 2, at.y + TOP + _MARGIN + row * (height + _GAP) + height // 2)


@dataclass(frozen=True)
class Confirmed:
    """Entries below each other, and OK at the bottom right."""

    title: str
    style: Style
    words: tuple[str, ...]
    inner: Size
    options: str
    """yad's options for the entries."""
    text_left: int
    """Pixels left of an entry's text."""
    row: int
    """Height of an entry in pixels."""
    pitch: int
    """Pixels from one entry to the next."""

    def command(self, at: Point) -> str:
        return _yad(self.title, self.style, _OK_ASKED, self.inner, at, f"{self.options} --button=OK:0")

    def labels(self, at: Point) -> tuple[Label, ...]:
        font, left = self.style.font, at.x + LEFT + self.text_left
        entries = (font.starting(word, left, self._middle(word, at)) for word in self.words)
        return (title_label(self, at), *entries, font.centred("OK", *self.target("OK", at)))

    def target(self, text: str, at: Point) -> Point:
        if text == "OK":
            right, bottom = at.x + LEFT + self.inner.width, at.y + TOP + self.inner.height
            return Point(right - _OK_MARGIN - _OK.width // 2, bottom - _OK_MARGIN - _OK.height // 2)
        left = at.x + LEFT + self.text_left
        return Point(left + self.style.font.width(text) // 2, self._middle(text, at))

    def _middle(self, word: str, at: Point) -> int:
        return at.y + TOP + _MARGIN + self.words.index(word) * self.pitch + (self.row + 1) // 2


def choice(title: str, style: Style, words: Sequence[str], width: int, more: int) -> Confirmed:
    """Make a list as high as its entries need, plus `more`; OK prints the chosen entry."""
    row = style.font.line + 6
    size = Size(width, len(words) * row + 2 * _MARGIN + 40 + more)
    options = f"--list --no-headers --column=Name --print-column=1 --separator='' {' '.join(words)}"
    return Confirmed(title, style, tuple(words), size, options, _MARGIN + 5, row, row)


def boxes(title: str, style: Style, words: Sequence[str], width: int, more: int) -> Confirmed:
    """Make boxes to tick, in a window as high as they need, plus `more`; OK prints the ticked ones, in their order."""
    pitch = _CHECK_ROW + _GAP
    size = Size(width, len(words) * pitch + 2 * _MARGIN + 36 + more)
    options = f"--form --separator=, {' '.join(f'--field={word}:CHK' for word in words)}"
    return Confirmed(title, style, tuple(words), size, options, _MARGIN + _CHECK_TEXT, _CHECK_ROW, pitch)
