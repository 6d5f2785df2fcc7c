"""Screens of real desktops to learn from: the expert plays generated tasks, and each screen before a reply is kept.

Reading is taught on windows of all words, the held-out ones too: the policy may know how a word looks that it never
acts on. Those windows are only looked at, never pressed.
"""

from __future__ import annotations

import json
import logging
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from arpo_verl.actions.ui_tars import parse_reply
from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.threaded import ThreadedDesktop
from arpo_verl.errors import DesktopError
from arpo_verl.files import write_whole
from arpo_verl.images import read_image
from arpo_verl.tasks.families import generate
from arpo_verl.tasks.families.generation import task_json
from arpo_verl.tasks.families.kinds import FAMILIES, Draw, Opened
from arpo_verl.tasks.families.lexicon import HELD_OUT_WORDS, WORDS
from arpo_verl.tasks.families.styles import FACES, SIZES, THEMES, Font
from arpo_verl.types import Task
from policies.seeing.examples import Example, examples_of, texts_of
from policies.seeing.layout import SCREEN
from policies.seeing.screens import Screen, Text, moved, recoloured, shifted

logger = logging.getLogger(__name__)

_TITLE = Font("Sans Bold", 12)
_FONTS = [Font(face, pixels) for face in FACES for pixels in SIZES]


class Capture(NamedTuple):
    """A screen, and what the expert does on it; None on a screen that is only read."""

    screen: Screen
    example: Example | None


class Sheet(NamedTuple):
    """Windows to read and not to act on."""

    spec: dict[str, Any]
    windows: Sequence[Opened]


def draw_reading(index: int) -> Sheet:
    """Windows like those of training that show any words, the held-out ones mostly: what a policy may learn to read."""
    family = list(FAMILIES)[index % len(FAMILIES)]
    words = HELD_OUT_WORDS if index % 3 else WORDS
    plan = FAMILIES[family](Draw(random.Random(f"reading {index}"), words, THEMES))
    return Sheet(task_json(f"reading-{index:06d}-{family}", plan), plan.windows)


def capture(folder: Path, tasks: int, sheets: int) -> None:
    """Write the screens of so many training tasks and of so many windows to read into `folder`; those there stay.

    Raises:
        DesktopError: no desktop starts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [("training", number) for number in range(tasks)] + [("reading", number) for number in range(sheets)]
    missing = [(kind, number) for kind, number in numbers if not _file(folder, kind, number, 0).exists()]
    if not missing:
        return
    with ThreadedDesktop(EnvironmentConfig(screen_size=SCREEN), "seeing") as desktop:
        for kind, number in tqdm(missing, desc="captures", unit="task"):
            try:
                screens = _play(desktop, number) if kind == "training" else [_sheet(desktop, number)]
            except DesktopError as error:  # one task less
                logger.warning("no captures of %s task %d: %s", kind, number, error)
                continue
            for step in reversed(range(len(screens))):  # the first is written last: it says that all are there
                write_whole(_file(folder, kind, number, step), screens[step], sync=False)


def load_captures(folder: Path, tasks: int, sheets: int) -> list[Capture]:
    """Read what `capture` wrote, task after task, then the sheets.

    Raises:
        ImageError: a file is no picture.
    """
    captures = []
    for number in range(tasks):
        for example in examples_of("training", number):
            if (path := _file(folder, "training", number, example.step)).exists():
                captures.append(Capture(_screen(path, example.texts), example))
    for number in range(sheets):
        if (path := _file(folder, "reading", number, 0)).exists():
            texts = [t for one in draw_reading(number).windows if one.seen for t in texts_of(one)]
            captures.append(Capture(_screen(path, texts), None))
    return captures


def mixture(screens: Sequence[Screen], rng: random.Random, most: int = 3) -> Screen:
    """One of `screens`, moved, with windows of others set into it, some of them in other colours."""
    base = rng.choice(screens)
    dx, dy = rng.randint(-28, 28), rng.randint(-28, 28)
    pixels, texts = shifted(base.pixels, dx, dy), [moved(text, dx, dy) for text in base.texts]
    shown = [text for text in texts if text is not None]
    if rng.random() < 0.4:
        pixels = recoloured(pixels, rng)
    for _ in range(most):
        left, top, window, inside = _window(rng.choice(screens), rng)
        height, width = window.shape[:2]
        if rng.random() < 0.4:
            window = recoloured(window, rng)
        x, y = rng.randint(0, SCREEN.width - width), rng.randint(0, SCREEN.height - height)
        pixels[y : y + height, x : x + width] = window
        shown = [text for text in shown if not _meets(text, x - 2, y - 2, x + width + 2, y + height + 2)]
        shown += [text for one in inside if (text := moved(one, x - left, y - top)) is not None]
    return Screen(pixels, tuple(shown))


def shifted_capture(taken: Capture, rng: random.Random, most: int = 28) -> Capture:
    """A capture moved by up to so many pixels, and the reply with it, at times in other colours."""
    assert taken.example is not None
    dx, dy = rng.randint(-most, most), rng.randint(-most, most)
    example = taken.example.moved(dx, dy)
    if example is None:
        return taken
    pixels = shifted(taken.screen.pixels, dx, dy)
    return Capture(Screen(recoloured(pixels, rng) if rng.random() < 0.2 else pixels, example.texts), example)


def _window(screen: Screen, rng: random.Random) -> tuple[int, int, np.ndarray, list[Text]]:
    """One window's corner, pixels and texts; all of a screen without texts."""
    titles = sorted({text.window for text in screen.texts})
    if not titles:
        return 0, 0, screen.pixels[:28, :28], []
    title = rng.choice(titles)
    texts = [text for text in screen.texts if text.window == title]
    across = [x for t in texts for x in (t.box[0], t.box[2], t.target[0] if t.target else t.box[0])]
    left, right = max(0, int(min(across)) - 12), min(SCREEN.width, int(max(across)) + 14)
    top = max(0, int(min(t.box[1] for t in texts)) - 8)
    bottom = min(SCREEN.height, int(max(t.box[3] for t in texts)) + 8)
    return left, top, screen.pixels[top:bottom, left:right], texts


def _meets(text: Text, left: float, top: float, right: float, bottom: float) -> bool:
    return text.box[0] < right and left < text.box[2] and text.box[1] < bottom and top < text.box[3]


def _play(desktop: DesktopEnvironment, number: int) -> list[bytes]:
    """The screens before each of the expert's replies to a training task."""
    spec = generate("training", number).spec
    seen = desktop.reset(Task(spec["id"], spec["instruction"], spec))
    screens = []
    for example in examples_of("training", number):
        screens.append(seen.screenshot)
        if example.clicked is not None:
            for action in parse_reply(example.reply, SCREEN, SCREEN).actions:
                seen = desktop.step(action)
    return screens


def _sheet(desktop: DesktopEnvironment, number: int) -> bytes:
    spec = draw_reading(number).spec
    return desktop.reset(Task(spec["id"], spec["instruction"], spec)).screenshot


def _file(folder: Path, kind: str, number: int, step: int) -> Path:
    """Named by what the task is too: families change, and a picture of what is drawn no more has other texts."""
    task = generate("training", number) if kind == "training" else draw_reading(number)
    return folder / f"{kind}-{number:06d}-{step}-{zlib.crc32(json.dumps(task.spec).encode()):08x}.png"


def _screen(path: Path, texts: Sequence[Text]) -> Screen:
    pixels = np.array(read_image(path.read_bytes()).convert("RGB"))
    return Screen(pixels, tuple(replace(text, letters=_letters(text)) for text in texts))


def _letters(text: Text) -> tuple[float, ...]:
    """The middles of its letters, from the font whose advances come nearest to its width."""
    width = text.box[2] - text.box[0]
    font = _TITLE if text.is_title else min(_FONTS, key=lambda one: abs(one.width(text.text) - width))
    ends = accumulate((font.width(letter) for letter in text.text), initial=text.box[0])
    return tuple((left + right) / 2 for left, right in pairwise(ends))
