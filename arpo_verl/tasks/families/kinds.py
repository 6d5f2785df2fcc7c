"""The families: what each asks, which windows it opens, and what the expert presses. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from arpo_verl.tasks.families.styles import FACES, SCREEN, SIZES, Font, Style, Theme
from arpo_verl.tasks.families.windows import Grid, Message, Window, boxes, choice, close_button, frame
from arpo_verl.types import Point, Size

ANSWER = ">> ~/answer.txt"
NOTHING = "> /dev/null"

# The evaluators' commands: each waits at most 0.3 s for a program that was just closed.
PRINTED = (
    "for i in 1 2 3 4 5 6; do [ $(cat ~/answer.txt | wc -l) -ge {lines} ] && break; sleep 0.05; done; cat ~/answer.txt"
)
TITLES = (
    "for i in 1 2 3 4 5 6; do [ $(wmctrl -l | wc -l) -le {lines} ] && break; sleep 0.05; done; "
    "wmctrl -l | awk '{{print $NF}}' | sort"
)

T = TypeVar("T")


@dataclass(frozen=True)
class Opened:
    """A window at its place."""

    window: Window
    at: Point
    then: str = ANSWER
    """Where its output goes."""
    seen: bool = True
    """Whether it is visible at first."""

    def press(self, text: str) -> Press:
        return Press(text, self.window.target(text, self.at))


@dataclass(frozen=True)
class Press:
    """A click on the entry with this text."""

    text: str
    point: Point
    verb: str = "Press"


@dataclass(frozen=True)
class Plan:
    """A task before we write it as JSON."""

    instruction: str
    windows: Sequence[Opened]
    """The windows in the order of their opening: the last one is on top and has the focus."""
    presses: Sequence[Press]
    answer: Sequence[str]
    """The lines that the task's evaluator must find."""
    evaluated: str = PRINTED


class Draw:
    """A task's seed decides these: words, styles and places."""

    def __init__(self, random: Random, words: Sequence[str], themes: Sequence[Theme]):
        self._random = random
        self._words = tuple(random.sample(words, 20))
        self._themes = themes

    def words(self, count: int) -> tuple[str, ...]:
        """Return words that this task has not used yet."""
        taken, self._words = self._words[:count], self._words[count:]
        return tuple(taken)

    def style(self) -> Style:
        return Style(self.choice(self._themes), Font(self.choice(FACES), self.choice(SIZES)))

    def whole(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def choice(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    def sample(self, values: Sequence[T], count: int) -> list[T]:
        return self._random.sample(values, count)

    def mixed(self, values: Sequence[T]) -> list[T]:
        return self.sample(values, len(values))

    def places(self, windows: Sequence[Window]) -> list[Point]:
        """Return corners for frames that do not overlap and are completely on the screen."""
        sizes = [frame(window) for window in windows]
        while True:
            places: list[Point] = []
            for size in sizes:
                for _ in range(40):
                    at = Point(self.whole(0, SCREEN.width - size.width), self.whole(0, SCREEN.height - size.height))
                    others = zip(places, sizes, strict=False)
                    if all(_apart(at, size, other, its_size) for other, its_size in others):
                        places.append(at)
                        break
            if len(places) == len(sizes):
                return places

    def row(self, title: str, words: tuple[str, ...]) -> Message:
        """Make buttons beside each other, as wide as the longest word needs and the screen allows."""
        style = self.style()
        width = max(style.font.width(word) for word in words) + self.whole(10, 16)
        room = (SCREEN.width - 20) // len(words) - width - 2
        gap, indent = min(self.whole(4, 14), room), self.whole(6, 12)
        button = Size(width, self.whole(24, 32))
        return Message(title, style, words=words, button=button, gap=gap, indent=indent)

    def grid(self, title: str, words: tuple[str, ...]) -> Grid:
        """Make buttons below each other, sometimes in two columns if their number is even."""
        style, columns = self.style(), self.whole(1, 2) if len(words) % 2 == 0 else 1
        width = max(164 // columns, max(style.font.width(word) for word in words) + 10) + self.whole(0, 30)
        return Grid(title, style, words, columns, Size(width, self.whole(26, 36)))

    def note(self, title: str, text: str) -> Message:
        """Make a window with only a text."""
        return Message(title, self.style(), text, Size(self.whole(162, 180), self.whole(26, 44)))


def _apart(a: Point, a_size: Size, b: Point, b_size: Size) -> bool:
    beside = a.x + a_size.width <= b.x or b.x + b_size.width <= a.x
    return beside or a.y + a_size.height <= b.y or b.y + b_size.height <= a.y


def _beside(draw: Draw, windows: Sequence[Window], then: Sequence[str]) -> list[Opened]:
    """Place windows without overlap, each with the place for its output."""
    return [Opened(*one) for one in zip(windows, draw.places(windows), then, strict=True)]


def _stack(draw: Draw, count: int) -> list[tuple[Opened, tuple[str, ...]]]:
    """Stack windows with their words, the uppermost first: each covers the next, and a press in it uncovers that."""
    rows = [draw.row(title, draw.words(max(2, 5 - count))) for title in draw.words(count)]
    for number in reversed(range(count - 1)):
        upper, lower = rows[number].inner, rows[number + 1].inner
        wider = max(0, lower.width - upper.width) + draw.whole(0, 20)
        taller = max(0, lower.height - upper.height) + draw.whole(10, 40)
        size = Size(upper.width - 12 + wider, rows[number].text_size.height + taller)
        rows[number] = replace(rows[number], text_size=size)
    [at], opened = draw.places(rows[:1]), []
    for number, row in enumerate(rows):
        if number:
            room, size = frame(rows[number - 1]), frame(row)
            at = Point(at.x + draw.whole(0, room.width - size.width), at.y + draw.whole(0, room.height - size.height))
        opened.append((Opened(row, at, seen=number == 0), row.words))
    return opened


def _stacked(draw: Draw, count: int) -> Plan:
    stack = _stack(draw, count)
    presses = [one.press(draw.choice(words)) for one, words in stack]
    instruction = f"Press {', then '.join(press.text for press in presses)}."
    windows = [one for one, _ in reversed(stack)]
    return Plan(instruction, windows, presses, [press.text for press in presses])


# --- Families ----------------------------------------------------------------------------------------------------


def press(draw: Draw) -> Plan:
    """Press the named one of three to six buttons, in a row or in columns."""
    title, *words = draw.words(1 + draw.whole(3, 6))
    in_a_row = len(words) < 5 and draw.choice((True, False))
    window = (draw.row if in_a_row else draw.grid)(title, tuple(words))
    note = [draw.note(*draw.words(2))] if frame(window).height < 150 and draw.choice((True, False)) else []
    opened = _beside(draw, [window, *note], [ANSWER, NOTHING][: 1 + len(note)])
    target = draw.choice(words)
    template = draw.choice(("Press {}.", "Press the button {}.", "The button {} is to be pressed."))
    return Plan(template.format(target), draw.mixed(opened), [opened[0].press(target)], [target])


def choose(draw: Draw) -> Plan:
    """Choose the named entry of a list, and press OK."""
    title, *words = draw.words(1 + draw.whole(4, 6))
    window = choice(title, draw.style(), words, draw.whole(174, 270), draw.whole(0, 30))
    [opened] = _beside(draw, [window], [ANSWER])
    target = draw.choice(words[1:])  # the program has chosen the first one already
    template = draw.choice(("Choose {}.", "Choose {} from the list.", "In the list, {} is to be chosen."))
    return Plan(template.format(target), [opened], [opened.press(target), opened.press("OK")], [target])


def tick(draw: Draw) -> Plan:
    """Tick one or two named boxes, and press OK."""
    title, *words = draw.words(1 + draw.whole(3, 5))
    window = boxes(title, draw.style(), words, draw.whole(174, 270), draw.whole(0, 30))
    [opened] = _beside(draw, [window], [ANSWER])
    targets = draw.sample(words, draw.whole(1, 2))
    template = draw.choice(("Tick {}.", "Tick {} and press OK."))
    answer = "".join("TRUE," if word in targets else "FALSE," for word in words)
    presses = [opened.press(word) for word in (*targets, "OK")]
    return Plan(template.format(" and ".join(targets)), [opened], presses, [answer])


def follow(draw: Draw) -> Plan:
    """Press the button that a window of its own names; sometimes another window names another."""
    title, note, memo, *words = draw.words(3 + draw.whole(3, 4))
    target, other = draw.sample(words, 2)
    windows = [draw.row(title, tuple(words)), draw.note(note, target), draw.note(memo, other)][: draw.whole(2, 3)]
    opened = _beside(draw, windows, [ANSWER, NOTHING, NOTHING][: len(windows)])
    template = draw.choice(("Press what the window {} names.", "Press the button that the window {} names."))
    return Plan(template.format(note), draw.mixed(opened), [opened[0].press(target)], [target])


def close(draw: Draw) -> Plan:
    """Close the window of the given title."""
    windows = [draw.note(*draw.words(2)) for _ in range(draw.whole(2, 4))]
    opened = _beside(draw, windows, [NOTHING] * len(windows))
    target = draw.choice(opened)
    title = target.window.title
    template = draw.choice(("Close {}.", "Close the window {}.", "The window {} is to be closed."))
    closed = Press(title, close_button(target.window, target.at), "Close")
    stay = sorted(window.title for window in windows if window.title != title)
    return Plan(template.format(title), draw.mixed(opened), [closed], stay, evaluated=TITLES)


def two(draw: Draw) -> Plan:
    """Press one button and then another, in a window that the first one had covered."""
    return _stacked(draw, 2)


def three(draw: Draw) -> Plan:
    """Press three buttons, one after the other: each of the first two covers the next one's window."""
    return _stacked(draw, 3)


def five(draw: Draw) -> Plan:
    """Press five buttons, one after the other, as `three`."""
    return _stacked(draw, 5)


def which(draw: Draw) -> Plan:
    """Press the named button in the named window of two that have the same buttons."""
    words, titles = draw.words(draw.whole(2, 4)), draw.words(2)
    windows = [draw.row(title, tuple(draw.mixed(words))) for title in titles]
    opened = _beside(draw, windows, [f"| sed 's/^/{title} /' {ANSWER}" for title in titles])
    one, word = draw.choice(opened), draw.choice(words)
    template = draw.choice(("In the window {} press {}.", "In the window {} press the button {}."))
    title = one.window.title
    return Plan(template.format(title, word), draw.mixed(opened), [one.press(word)], [f"{title} {word}"])


FAMILIES: Mapping[str, Callable[[Draw], Plan]] = {
    family.__name__: family for family in (press, choose, tick, follow, close, two)
}
"""The families of all other splits."""
HELD_OUT_FAMILIES: Mapping[str, Callable[[Draw], Plan]] = {family.__name__: family for family in (which, three)}
"""The families of the split `held_out_families` and of no other."""
LONG_FAMILIES: Mapping[str, Callable[[Draw], Plan]] = {five.__name__: five}
"""The families of the splits `long` and `held_out_long`, with more turns than any other task."""
