"""Correct metrics of OSWorld's that gave 1.0 for less than their task asks: each makes one more check.

Some compare only up to the end of the shorter file, some accept an empty result, some believe what a file says about
itself. After such a metric has given a score, we check the result again. If something is missing, the score becomes 0,
and the episode's record says why. docs/benchmark-fidelity.md lists these metrics. The client's files stay as they are.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from arpo_verl.desktops.osworld.verdict.closed_ways import Instead, is_task_file

_METRICS = "desktop_env.evaluators.metrics"
MAX_NUMBERS = 10
"""Most numbers in a text that should answer with one: more are guesses."""
FILM_SHARE = 0.95
"""Share of the expected film's frames that a result must have: programs round a film's length differently."""
SLIDER_NUMBERS = 12
"""Numbers in VLC's slider setting: four colours."""

Lack = Callable[..., str]
"""A function that returns what a scored result lacks, in words, or empty. It takes the metric's arguments."""


class Refused(float):
    """A score of 0 with its reason."""

    def __new__(cls, why: str) -> Refused:
        score = super().__new__(cls, 0.0)
        score.why = why
        return score

    why: str

    def __repr__(self) -> str:
        return f"0.0, refused: {self.why}"


def mend_all() -> None:
    """Correct the metrics in this process, after its client is imported and `closed_ways` has run."""
    package = sys.modules[_METRICS]
    for path, lack in MENDED.items():
        name = path.partition(".")[2]
        metric = getattr(_module(path), name)
        mended = _mended(metric, lack)
        for module in (_module(path), package):
            if getattr(module, name) is metric:
                vars(module)[name] = mended
    gimp, thunderbird = _module("gimp"), _module("thunderbird")
    vars(gimp)["ImageChops"] = Instead(gimp.ImageChops, difference=functools.partial(_difference, gimp.ImageChops))
    for module in (thunderbird, package):
        vars(module)["check_thunderbird_folder"] = check_thunderbird_folder


def _module(path: str) -> ModuleType:
    return sys.modules[f"{_METRICS}.{path.partition('.')[0]}"]


def _mended(metric: Callable[..., Any], lack: Lack) -> Callable[..., Any]:
    @functools.wraps(metric)
    def call(*args: Any, **options: Any) -> Any:
        score = metric(*args, **options)
        lacking = lack(*args, **options) if score else ""
        return Refused(lacking) if lacking else score

    return call


# --- Only as far as the shorter goes ---------------------------------------------------------------------------------


def _fewer(**counts: Callable[[str], int]) -> Lack:
    def lack(result: str, expected: str, **_: Any) -> str:
        for what, count in counts.items():
            found, wanted = count(result), count(expected)
            if found < wanted:
                return f"it has {found} {what}, the expected file {wanted}"
        return ""

    return lack


def _elements(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return len(_module("chrome").BeautifulSoup(file, "lxml").find_all(True))


def _document(path: str) -> Any:
    return _module("docs").Document(path)


def _paragraphs(path: str) -> int:
    return len(_document(path).paragraphs)


def _shorter_film(result: str, expected: str, **_: Any) -> str:
    cv2 = _module("vlc").cv2
    film, gold = cv2.VideoCapture(result), cv2.VideoCapture(expected)
    found, wanted = (int(one.get(cv2.CAP_PROP_FRAME_COUNT)) for one in (film, gold))
    last = int(wanted * FILM_SHARE) - 1
    film.set(cv2.CAP_PROP_POS_FRAMES, last)  # its head may promise frames that are not there
    if last < 0 or (found > last and film.grab()):
        return ""
    return f"it ends before frame {last} of the expected film's {wanted}"


# --- All of nothing --------------------------------------------------------------------------------------------------


def _no(**counts: Callable[[str], int]) -> Lack:
    def lack(result: str, *_: Any, **__: Any) -> str:
        return next((f"it has no {what}" for what, count in counts.items() if not count(result)), "")

    return lack


def _text(path: str) -> int:
    document = _document(path)
    cells = [cell for table in document.tables for row in table.rows for cell in row.cells]
    return sum(len(part.text.strip()) for part in [*document.paragraphs, *cells])


def _runs(path: str) -> int:
    return sum(len(run.text.strip()) for paragraph in _document(path).paragraphs for run in paragraph.runs)


def _no_italics(result: str, expected: str, **_: Any) -> str:
    def italic(path: str) -> bool:
        return any(run.italic for paragraph in _document(path).paragraphs for run in paragraph.runs)

    return "it has no italic text, the expected file has" if italic(expected) and not italic(result) else ""


def _other_tables(result: str, expected: str, **_: Any) -> str:
    return "" if _module("docs").compare_docx_tables(result, expected) else "its tables are not the expected ones"


def _few_colours(result: str, rule: dict[str, Any], **_: Any) -> str:
    with open(result, encoding="utf-8") as file:
        lines = [line for line in file.read().split("\n") if "qt-slider-colours" in line]
    numbers = len(lines[-1].split("=")[-1].split(";")) if lines else SLIDER_NUMBERS
    few = rule["type"] == "blackish" and numbers < SLIDER_NUMBERS
    return f"it has {numbers} numbers of the slider's {SLIDER_NUMBERS}" if few else ""


def _fewer_keys(result: str, expected: str, **_: Any) -> str:
    found, wanted = (len(json.loads(open(path).read())) for path in (result, expected))
    # The metric looks only for the first file's keys in the other; a task may give the expected file first.
    return f"it has {found} keys, the expected file {wanted}" if found < wanted and not is_task_file(result) else ""


# --- What a file says of itself --------------------------------------------------------------------------------------


def _torn_picture(path: str, *_: Any, **__: Any) -> str:
    try:
        with _module("gimp").Image.open(path) as picture:
            picture.load()
    except (OSError, SyntaxError, ValueError) as error:
        return f"it is no whole picture: {error}"
    return ""


def _no_sound(path: str, *_: Any, **__: Any) -> str:
    mutagen: Any = importlib.import_module("mutagen")
    try:
        found = mutagen.File(path)
    except mutagen.MutagenError:
        found = None
    return "" if found is not None and found.info.length > 0 else "it has tags, and no sound"


def _unstruck(path: str, rules: dict[str, Sequence[int]], **_: Any) -> str:
    slides = _module("slides").Presentation(path).slides
    for slide in rules["slide_index_s"]:
        for shape in rules["shape_index_s"]:
            for paragraph in rules["paragraph_index_s"]:
                run = slides[slide].shapes[shape].text_frame.paragraphs[paragraph].runs[0]
                if run.font._element.get("strike") == "noStrike":
                    return "its text says that it is not struck through"
    return ""


def _guesses(result: str, expected: str, **_: Any) -> str:
    with open(result) as file, open(expected) as gold:
        text, wanted_text = file.read().strip(), gold.read().strip()
    try:
        wanted = abs(float(wanted_text))
        numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]
    except ValueError:
        return ""
    if text == wanted_text or len(numbers) == 0:
        return ""
    if not any(abs(number - wanted) < 1e-4 for number in numbers):
        return "the expected number is there as a part of another alone"
    return f"it has {len(numbers)} numbers" if len(numbers) > MAX_NUMBERS else ""


# --- Replaced --------------------------------------------------------------------------------------------------------


def _difference(chops: Any, one: Any, other: Any) -> Any:
    """Return `ImageChops.difference` with the box of all channels: Pillow finds none in opaque pictures with alpha."""
    if one.mode in ("P", "PA"):  # indices, which may mean other colours in the other picture
        one, other = one.convert("RGBA"), other.convert("RGBA")
    difference = chops.difference(one, other)
    return Instead(difference, getbbox=functools.partial(difference.getbbox, alpha_only=False))


def check_thunderbird_folder(result: Any, reference: Any, **options: Any) -> float:
    """Return 1.0 if folders of Thunderbird's hold the same messages, as OSWorld's metric of this name should.

    OSWorld's skips each message that is not empty, so any two folders are equal for it.

    Args:
        result: a folder's file, or a list of such.
        reference: as many.
        options: `ignore_status`, `ignore_keys` (both off), `remove_deleted` and `remove_duplicate` (both on).
    """
    results, references = ([one] if not isinstance(one, list) else one for one in (result, reference))
    if len(results) != len(references) or None in results:
        return 0.0
    pairs = zip(results, references, strict=True)
    return float(all(_messages(found, options) == _messages(wanted, options) for found, wanted in pairs))


def _messages(path: str, options: dict[str, Any]) -> list[str]:
    with open(path) as file:
        # The line between two has the time at which the message came into this folder.
        found = re.split(r"^From - .*$", file.read(), flags=re.MULTILINE | re.IGNORECASE)
    if options.get("remove_deleted", True):
        found = [message for message in found if not re.search(r"^X-Mozilla-Status: 000[89]", message, re.MULTILINE)]
    for name, header in (("ignore_status", r"X-Mozilla-Status2?"), ("ignore_keys", "X-Mozilla-Keys")):
        if options.get(name, False):
            found = [re.sub(rf"^{header}:.*\n", "", message, flags=re.MULTILINE) for message in found]
    messages = [message.strip() for message in found if message.strip()]
    return sorted(set(messages) if options.get("remove_duplicate", True) else messages)


MENDED: dict[str, Lack] = {
    "chrome.compare_htmls": _fewer(elements=_elements),
    "docs.check_italic_font_size_14": _no_italics,
    "docs.compare_contains_image": _fewer(
        paragraphs=_paragraphs, pictures=lambda path: len(_document(path).element.body.xpath(".//a:graphicData"))
    ),
    "docs.compare_font_names": _no(text=_runs),
    "docs.compare_init_lines": _fewer(paragraphs=_paragraphs),
    "docs.compare_subscript_contains": _fewer(paragraphs=_paragraphs),
    "docs.evaluate_alignment": _no(text=_text),
    "docs.evaluate_colored_words_in_tables": _other_tables,
    "docs.evaluate_conversion": _no(text=_text),
    "docs.evaluate_strike_through_last_paragraph": _no(
        text=lambda path: len(_document(path).paragraphs[-1].text.strip())
    ),
    "docs.has_page_numbers_in_footers": _no(page=lambda path: len(_document(path).sections)),
    "general.is_included_all_json_objects": _fewer_keys,
    "gimp.check_image_file_size": _torn_picture,
    "gimp.check_image_size": _torn_picture,
    "others.check_mp3_meta": _no_sound,
    "others.compare_epub": _fewer(parts=lambda path: len(_module("others").process_epub(path))),
    "slides.check_strikethrough": _unstruck,
    "slides.compare_pptx_files": _fewer(slides=lambda path: len(_module("slides").Presentation(path).slides)),
    "vlc.check_qt_slider_colours": _few_colours,
    "vlc.compare_videos": _shorter_film,
    "vscode.compare_result_files": _guesses,
}
"""Module and name of a metric -> the function that finds what its result lacks."""
