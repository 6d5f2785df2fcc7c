"""The page consists of files beside this module."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

ASSETS = Path(__file__).parent / "assets"


def index_page(source: Literal["server", "files", "report"], place: Literal["alone", "run", "runs"] = "alone") -> str:
    """Return `index.html` with the source of its documents: a server, scripts on disk, or the page itself.

    Args:
        place: `runs` for a folder of runs, `run` for a run of such a folder, `alone` for a single run.
    """
    text = (ASSETS / "index.html").read_text(encoding="utf-8")
    before, _, after = text.partition('data-source="server" data-place="alone"')
    return f'{before}data-source="{source}" data-place="{place}"{after}'
