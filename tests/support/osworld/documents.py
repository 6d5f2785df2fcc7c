"""Documents of our own in the place of those that OSWorld's tasks download, for a machine without the internet.

The task files stay as they are: the documents lie where a download would have been kept. So a task's set-up, the
program, the keys and the evaluator are OSWorld's; only what stands in the document is not.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pptx
from PIL import Image
from pptx.util import Cm

from arpo_verl.desktops.osworld.task_files import DownloadStore, downloads_of
from arpo_verl.types import Task
from support import made_files as make

ROWS = [["Name", "Amount", "City"], ["Ann", 12, "Bern"], ["Bob", 7, "Oslo"], ["Cid", 30, "Rome"]]
TEXT = ("The Constitution", "First paragraph of the text.", "Second paragraph of the text.")


def keep_documents(store: Path, task: Task) -> None:
    """Make a document for each download of `task`."""
    for download in downloads_of(task.spec):
        path = DownloadStore(store).path(task.task_id, download)
        path.parent.mkdir(parents=True, exist_ok=True)
        _MAKERS[path.suffix](path)


def _slides(path: Path) -> None:
    presentation = pptx.Presentation()
    presentation.slide_width, presentation.slide_height = Cm(28), Cm(21)
    presentation.slides.add_slide(presentation.slide_layouts[0]).shapes.title.text = TEXT[0]
    presentation.save(str(path))


def _photo(path: Path) -> None:
    x, y = Image.linear_gradient("L").rotate(90), Image.linear_gradient("L")
    Image.merge("RGB", (x, y, Image.new("L", x.size, 90))).save(path)


def _film(path: Path) -> None:
    """Five minutes, five pictures a second: longer than any test looks at it."""
    film = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 5, (320, 180))
    for number in range(1500):
        film.write(np.full((180, 320, 3), (number % 256, 90, 160), np.uint8))
    film.release()


_MAKERS = {
    ".docx": lambda path: path.write_bytes(make.docx(*TEXT)),
    ".xlsx": lambda path: path.write_bytes(make.xlsx(*ROWS)),
    ".csv": lambda path: path.write_text("".join(",".join(map(str, row)) + "\n" for row in ROWS)),
    ".pptx": _slides,
    ".jpg": _photo,
    ".mp4": _film,
}
