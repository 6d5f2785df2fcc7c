"""Every function of OSWorld's metrics with a result that is right, and results that are not, to be scored.

`main` writes `{metric: {attack: score, or what was raised}}`; `RIGHT` is the right result. The table is `metric_table`.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import made_files as make

RIGHT = "right"
SAME = object()
"""The expected file is the right result itself."""
NONE = object()
"""The metric takes no expected value."""


@dataclass(frozen=True)
class Gold:
    """An expected file that differs from the right result."""

    content: Any


@dataclass(frozen=True)
class Try:
    """How a metric is tried: `make(*parts)` is the right result, the bytes of a file where that has a suffix."""

    make: Callable[..., Any]
    parts: tuple[Any, ...]
    expected: Any = SAME
    ending: str = ""
    """The file's, where it is not its maker's own."""
    options: dict[str, Any] = field(default_factory=dict)
    fulfilled: dict[str, str] = field(default_factory=dict)
    """Attacks that do what the task asks, and why."""
    more: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Attacks upon this metric alone: the parts of each result."""
    swapped: bool = False
    """The task gives what it expects first."""
    as_list: bool = False
    """The metric takes lists of files."""
    beside: bytes | None = None
    """A second expected file."""

    @property
    def suffix(self) -> str:
        return self.ending or getattr(self.make, "suffix", "")


# --- Attacks ---------------------------------------------------------------------------------------------------------

NOISE = bytes(random.Random(32).randrange(256) for _ in range(6000))
WORDS = b"0123456789 the quick brown fox = ; 1984 100 7 a, b; (c)\n" * 40
DASH = (
    '<!--skip--><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S" '
    'profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period duration="PT1S"><AdaptationSet contentType="audio" '
    'mimeType="audio/mp4"><Representation id="1" mimeType="audio/mp4" bandwidth="64000"><BaseURL>{gold}</BaseURL>'
    "</Representation></AdaptationSet></Period></MPD>"
)
"""That plays the expected sound; a film in MPEG-4 has `skip` at byte 4 too."""
LISTS = """ffconcat version 1.0
file {gold}
#EXTM3U
{gold}
<!DOCTYPE x [<!ENTITY e SYSTEM "{gold}">]><x>&e;</x><img src="{gold}"/>
"""
"""That name the expected file, for whatever reads lists to play, entities or pages."""
ANOTHER: dict[str, Callable[[], bytes]] = {
    ".docx": lambda: make.docx("Something else."),
    ".odt": lambda: make.odt("Something else."),
    ".pptx": lambda: make.pptx("Something else."),
    ".xlsx": lambda: make.xlsx(["Something", "else"]),
    ".pdf": lambda: make.pdf("Something else."),
    ".png": lambda: make.picture(99),
    ".html": lambda: make.html("<p>Something else.</p>"),
    ".json": lambda: make.json_of(("something", "else")),
    ".zip": lambda: make.packed(("something", b"else")),
    ".tar.gz": lambda: make.tarred(("something", b"else")),
    ".epub": lambda: make.packed(("something.html", b"<html><body>else</body></html>")),
    ".wav": lambda: make.sound(2000, 90),
    ".avi": lambda: make.film(7, 8, 9),
    ".db": lambda: make.database("something"),
    ".mp3": lambda: make.song(("title", "Something"), ("artist", "Else")),
}


def attacks(case: Try, right: Any, gold: str) -> Iterator[tuple[str, Any]]:
    """What a policy may leave in the place of `right`: files as bytes, other values as they are."""
    yield "missing", None
    yield "nothing in it", case.make()
    if len(case.parts) > 1:
        yield "first part", case.make(*case.parts[:1])
    for attack, parts in case.more.items():
        yield attack, case.make(*parts)
    if isinstance(right, bytes):
        yield "garbage", NOISE
        yield "garbled text", WORDS
        yield "empty", b""
        yield "torn in the middle", right[: len(right) // 2]
        yield "torn before the end", right[: len(right) * 4 // 5]
        yield "head", right[: min(64, len(right) // 4)]
        lists = LISTS.format(gold=gold).encode()
        yield "list", lists
        yield "list behind a comment", DASH.format(gold=gold).encode()
        yield "list behind a head", right[: min(16, len(right) // 4)] + b"\n" + lists
        if case.suffix in ANOTHER:
            yield "another", ANOTHER[case.suffix]()
    else:
        yield "garbled text", WORDS.decode()
        yield "another type", {"a": 1} if isinstance(right, list) else ["a", "b"]
        if not isinstance(right, dict):
            yield "empty", right[:0]


# --- Scores ----------------------------------------------------------------------------------------------------------


def main(tries: dict[str, Try], scores_path: str) -> None:
    """Score them all, in a process that is closed and mended as a sandbox is, and write the scores."""
    from arpo_verl.desktops.osworld.verdict import sandbox

    logging.disable(logging.CRITICAL)
    sandbox.warm_up()
    metrics = sys.modules["desktop_env.evaluators.metrics"]
    scores: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, case) in enumerate(tries.items()):
            module, _, function = name.partition(" ")[0].partition(".")
            place = Path(folder) / str(number)
            place.mkdir()
            scores[name] = dict(scores_of(vars(getattr(metrics, module))[function], case, place))
    Path(scores_path).write_text(json.dumps(scores))


def scores_of(metric: Callable[..., Any], case: Try, folder: Path) -> Iterator[tuple[str, Any]]:
    right = case.make(*case.parts)
    expected = case.expected
    gold = folder / f"gold{case.suffix}"
    if expected is SAME and case.suffix or isinstance(expected, Gold):
        gold.write_bytes(right if expected is SAME else expected.content)
        expected = [str(gold)] if case.as_list else str(gold)
    if case.beside is not None:
        (folder / f"beside{case.suffix}").write_bytes(case.beside)
        expected = [str(gold), str(folder / f"beside{case.suffix}")]
    for number, (attack, result) in enumerate([(RIGHT, right), *attacks(case, right, str(gold))]):
        if isinstance(result, bytes):
            path = folder / f"mine{number}{case.suffix}"
            path.write_bytes(result)
            result = [str(path)] if case.as_list else str(path)
        given = [result] if expected is NONE else [expected, result] if case.swapped else [result, expected]
        yield attack, scored(metric, given, case.options)


def scored(metric: Callable[..., Any], given: list[Any], options: dict[str, Any]) -> Any:
    try:
        score = metric(*given, **json.loads(json.dumps(options)))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:200]
    return None if score is None else float(score)
